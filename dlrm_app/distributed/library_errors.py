"""Explains the libraries' errors: memory, a lost rank, a GPU without kernels."""

import re

import torch

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
    "Application timeout",  # a connection that failed in an earlier collective
    # NCCL and the process group around it
    "ncclRemoteError",
    "Connection closed by remote peer",  # NCCL turns some remote errors into internal ones, and keeps this text
    "remote process exited",
    "collective operation timeout",
    "timed out in blocking wait",
    "NCCL communicator was aborted",
    # the store, once the rank that serves it is gone
    "failed to recv, got 0 bytes",
    "DistStoreError",
)
_BATCHES = "trainer.global_batch_size or evaluation.batch_size (where commands score: batch_size)"
_CUDA_MEMORY = (
    f"what helps, on every rank: a smaller {_BATCHES}; more ranks; a larger "
    "topology.reserved_share, which keeps tables off full GPUs; 'sharding.tables={*:{kernels:[fused_uvm_caching]}}', "
    "which keeps them in host memory. If much is reserved but not allocated: "
    "PYTORCH_ALLOC_CONF=expandable_segments:True"
)
_CPU_MEMORY = f"lower {_BATCHES}, the tables' dim or the widths of the MLPs, or use more ranks"


def fixable(error: BaseException) -> DlrmError | None:
    """Turns a library's failure into an error with a cure; None if there is no known cure."""
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
    """True if ``error`` says that the other end of a collective is gone or silent. No library has a class for it."""
    return isinstance(error, RuntimeError) and any(
        sign in f"{type(error).__name__}: {error}" for sign in _LOST_PEER
    )
