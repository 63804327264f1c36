"""The libraries' errors, explained in a rank's last message: memory, a lost peer."""

import re
import sys

import torch

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import DlrmError
from dlrm_app.machine import explain_missing

_NO_MEMORY = re.compile(
    "can't allocate memory|out of memory|Unable to allocate|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
)
_OF_GPU = re.compile("CUDA|CUBLAS|CUDNN|NCCL")
_LOST_PEER = (
    # gloo
    "Connection closed by peer",
    "Connection reset",
    "Broken pipe",
    "Timed out waiting",
    "Application timeout",  # of a connection that an earlier collective has given up
    # NCCL and the process group around it
    "ncclRemoteError",
    "Connection closed by remote peer",  # NCCL turns some remote errors into internal ones, and keeps this text
    "remote process exited",
    "collective operation timeout",
    "timed out in blocking wait",
    "NCCL communicator was aborted",
    # the store, once the rank that has it is gone
    "failed to recv, got 0 bytes",
    "DistStoreError",
)
_CUDA_MEMORY = (
    "what helps, on every rank: a smaller trainer.global_batch_size or evaluation.batch_size; more ranks; a larger "
    "topology.reserved_share, which keeps tables off full GPUs; 'sharding.tables={*:{kernels:[fused_uvm_caching]}}', "
    "which keeps them in host memory. If much is reserved but not allocated: PYTORCH_ALLOC_CONF=expandable_segments:True"
)
_CPU_MEMORY = "lower the batch sizes, the tables' dim or the widths of the MLPs, or use more ranks"


def fixable(error: BaseException) -> DlrmError | None:
    """The failure as an error that says what to type; None where only its own text can tell."""
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    text = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY.search(text):
        on_gpu = isinstance(error, torch.OutOfMemoryError) or bool(_OF_GPU.search(text))
        said = text.split(" If reserved")[0] if on_gpu else _NO_MEMORY.split(text)[-1].strip(" :.")[:100]
        return DlrmError(f"out of memory: {said.rstrip('.')}; {_CUDA_MEMORY if on_gpu else _CPU_MEMORY}")
    if "no kernel image is available" in text and torch.cuda.is_available():
        return DlrmError(
            f"{torch.cuda.get_device_name()}, {explain_missing(torch.cuda.get_device_capability())}"
        )
    return None


def is_lost_peer(error: BaseException) -> bool:
    """True if ``error`` is a collective's complaint that its other end is gone or silent (no library has a class for it)."""
    return isinstance(error, RuntimeError) and any(
        sign in f"{type(error).__name__}: {error}" for sign in _LOST_PEER
    )


def print_failure(error: BaseException, ranks: Ranks) -> int:
    """Says why this rank ends, whatever the library said included, and gives its exit code."""
    rank = f"rank {ranks.rank}"
    if isinstance(error, DlrmError):
        print(f"error ({rank}): {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    if is_lost_peer(error):
        print(
            f"{rank} lost contact with another rank: that one's last message says why; "
            f"if it has none, look at its machine and the network. What was said here: {' '.join(str(error).split())}",
            file=sys.stderr,
        )
        return 1
    sys.excepthook(type(error), error, error.__traceback__)
    if "NCCL" in str(error):
        print(f"error ({rank}): an error of NCCL (docs/how-to/launching.md#errors-of-nccl)", file=sys.stderr)
    return 1
