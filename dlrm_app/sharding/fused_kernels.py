"""What fbgemm's kernels keep from one call to the next, evaluations included: their number, and locks of cached rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn


def fused_kernels(model: nn.Module) -> Iterator[Any]:
    """The fused lookups of the sharded ``model``, which torchrec keeps in lists that ``modules`` does not see."""
    for module in model.modules():
        for lookup in getattr(module, "_lookups", ()):
            for part in lookup.modules():
                if isinstance(part, SplitTableBatchedEmbeddingBagsCodegen):
                    yield part


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Forward passes of the block are no steps of training.

    Adam's and LAMB's bias corrections would take them for some. With the pipeline ``prefetch`` each lookup locks the
    rows that it finds in a GPU's cache, and the backward pass unlocks them: without one they would stay there for good.
    """
    kernels = list(fused_kernels(model))
    before = [(kernel.iter.clone(), kernel.iter_cpu.clone(), kernel.lock_cache_line) for kernel in kernels]
    for kernel in kernels:
        kernel.lock_cache_line = False
    try:
        yield
    finally:
        for kernel, (count, count_cpu, locks) in zip(kernels, before, strict=True):
            kernel.iter.copy_(count)
            kernel.iter_cpu.copy_(count_cpu)
            kernel.lock_cache_line = locks


def uncount_step(model: nn.Module) -> None:
    """Takes the last forward pass, of a step that was skipped, out of the count."""
    for kernel in fused_kernels(model):
        if kernel.iter_cpu.item():  # SGD's and Adagrad's kernels do not count
            kernel.iter -= 1
            kernel.iter_cpu -= 1
