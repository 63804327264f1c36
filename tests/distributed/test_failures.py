"""What the libraries say, as users have met it, and what they are told."""

import pytest
import torch

from dlrm_app.cli.failure import print_failure
from dlrm_app.distributed.library_errors import fixable, is_lost_peer
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import DlrmError

NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {} "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n{}\nLast error:\n{}"
)
SYSTEM = (
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
)
INTERNAL_ERROR = "ncclInternalError: Internal check failed."
DUPLICATE = NCCL.format(
    "invalid usage",
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
)
BAD_NIC = NCCL.format(
    "unhandled system error",
    SYSTEM,
    "socketStartConnect: Connect to 172.17.0.1<45763> failed : Connection refused",
)
INTERNAL = NCCL.format("internal error", INTERNAL_ERROR, "Cuda failure 999 'unknown error'")
REMOTE = NCCL.format(
    "remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "socketProgress: Connection closed by remote peer node1<57557>",
)
REMOTE_TOLD_AS_INTERNAL = NCCL.format(
    "internal error", INTERNAL_ERROR, "Net : Connection closed by remote peer node1<47861>"
)
TIMEOUT = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLTOALL_BASE, NumelIn=131072, "
    "NumelOut=131072, Timeout(ms)=600000) ran for 600081 milliseconds before timing out."
)
GLOO_RESET = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35441"
)
GLOO_SETUP = "[../third_party/gloo/gloo/transport/tcp/device.cc:83] Unable to find address for: eth7"
CUDA_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.21 GiB is "
    "free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory 70.11 GiB "
    "is allocated by PyTorch, and 6.02 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
RANK = Ranks(rank=3, local_rank=3, world_size=8, local_world_size=8, device_type="cuda")


@pytest.mark.parametrize("text", [REMOTE, REMOTE_TOLD_AS_INTERNAL, TIMEOUT, GLOO_RESET])
def test_remote_errors_resets_and_timeouts_are_a_lost_peer(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = RuntimeError(text)
    assert is_lost_peer(error)
    assert print_failure(error, RANK) == 1
    told = capsys.readouterr().err
    assert told.startswith("rank 3 lost contact with another rank")
    assert " ".join(text.split()) in told


@pytest.mark.parametrize("text", [DUPLICATE, BAD_NIC, INTERNAL, GLOO_SETUP])
def test_a_ranks_own_error_is_not_reported_as_a_lost_peer(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = RuntimeError(text)
    assert not is_lost_peer(error)
    assert print_failure(error, RANK) == 1
    told = capsys.readouterr().err
    assert all(line in told for line in text.splitlines())  # torch may have put a rank before each
    assert ("#errors-of-nccl" in told) == ("NCCL" in text)


def test_too_little_gpu_memory_is_reported_with_a_cure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = fixable(torch.OutOfMemoryError(CUDA_MEMORY))
    assert isinstance(failure, DlrmError)
    assert print_failure(failure, RANK) == 1
    told = capsys.readouterr().err
    for part in (
        "error (rank 3): out of memory",
        "Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.21 GiB is free",
        "trainer.global_batch_size",
        "topology.reserved_share",
        "fused_uvm_caching",
        "PYTORCH_ALLOC_CONF",
    ):
        assert part in told


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "NCCL error: unhandled cuda error, Last error: Cuda failure 2 'out of memory'",
    ],
)
def test_other_libraries_gpu_memory_errors_are_recognized(text: str) -> None:
    failure = fixable(RuntimeError(text))
    assert failure is not None
    assert text.split(",")[0] in str(failure)
    assert "topology.reserved_share" in str(failure)


def test_a_gpu_without_kernels_is_recognized_by_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("CUDA error: no kernel image is available for execution on the device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    failure = fixable(error)
    assert str(failure).startswith("Tesla T4, compute capability 7.5: fbgemm-gpu's wheels have kernels")


def test_other_errors_are_nobody_s_to_mend() -> None:
    assert fixable(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert fixable(ValueError("out of memory")) is None
