"""Metrics of a model over a whole split, every row counted once at any number of ranks."""

import time
from collections.abc import Callable
from contextlib import closing

import torch
from torch import nn

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.forward_passes import SizedBatches, forward_passes
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.batch import Batch
from dlrm_app.progress import progress_bar
from dlrm_app.sharding.fused_kernels import undisturbed


# not inference_mode: what modules keep of a first pass would be refused by the next backward pass
@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: SizedBatches,
    metrics: ClickMetrics,
    runtime: Runtime,
    title: str,
    on_batch: Callable[[Batch], None] | None = None,
) -> dict[str, float]:
    """Metrics of ``model`` (a sharded ClickTask, its training pipeline detached) over ``batches``.

    The same on every rank. Adds ``seconds``, the time it took. ``on_batch`` gets every batch, on the device.
    """
    started = time.perf_counter()
    model.eval()
    metrics.reset()
    passes = closing(forward_passes(model, batches, runtime.device))
    with progress_bar(title, len(batches), runtime.is_first) as bar, undisturbed(model), passes as scored:
        for batch, logits in scored:
            groups = None if metrics.group_by is None else group_ids(batch, metrics.group_by)
            metrics.update(logits[: batch.num_valid], batch.labels[: batch.num_valid], groups)
            if on_batch:
                on_batch(batch)
            bar.update(1)
    model.train()
    values = metrics.compute()
    return {**values, "seconds": time.perf_counter() - started}


def group_ids(batch: Batch, feature: str) -> torch.Tensor:
    """[num_valid] the ids of the one-hot ``feature``."""
    return batch.sparse_features[feature].values()[: batch.num_valid]
