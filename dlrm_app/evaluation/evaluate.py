"""Metrics of a model over a whole split, every row counted once at any number of ranks."""

import time
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Protocol

import torch
from torch import nn

from dlrm_app.config.train import EvaluationConfig
from dlrm_app.data.batch import Batch
from dlrm_app.data.manifest import Manifest
from dlrm_app.display.progress import progress_bar
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.sharding.fused_counters import uncounted
from dlrm_app.tables.specs import Table


class SizedBatches(Iterable[Batch], Sized, Protocol):
    """Batches whose number is known beforehand, the same on every rank."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: SizedBatches,
    metrics: ClickMetrics,
    runtime: Runtime,
    title: str,
    on_batch: Callable[[Batch], None] = lambda _: None,
) -> dict[str, float]:
    """Metrics of ``model`` (a sharded ClickTask, its training pipeline detached) over ``batches``.

    The same on every rank. Adds ``seconds``, the time it took. ``on_batch`` gets every batch, on the device.
    """
    started = time.perf_counter()
    model.eval()
    metrics.reset()
    with progress_bar(title, len(batches), runtime.is_first) as bar, uncounted(model):
        for batch in batches:
            on_device = batch.to(runtime.device, non_blocking=True)
            _, (_, logits, labels) = model(on_device)
            groups = None if metrics.group_by is None else group_ids(on_device, metrics.group_by)
            metrics.update(logits[: batch.num_valid], labels[: batch.num_valid], groups)
            on_batch(on_device)
            bar.update(1)
    model.train()
    values = metrics.compute()
    return {**values, "seconds": time.perf_counter() - started}


def group_ids(batch: Batch, feature: str) -> torch.Tensor:
    """[num_valid] the ids of the one-hot ``feature``."""
    return batch.sparse_features[feature].values()[: batch.num_valid]


def evaluation_problems(config: EvaluationConfig, manifest: Manifest, tables: Sequence[Table]) -> list[str]:
    """What the dataset does not allow of the evaluations of a training run."""
    problems = []
    features = [name for table in tables for name in table.features]
    if problem := group_problem(manifest, features, config.group_by):
        problems.append(f"evaluation.{problem}")
    has_val = "val" in manifest.splits and manifest.splits["val"].positives is not None
    for key in ("every_steps", "per_epoch", "target_auc", "patience"):
        if getattr(config, key) is not None and not has_val:
            problems.append(
                f"evaluation.{key} needs a labelled val split, which {manifest.path} has not: set it to null, "
                "or preprocess with split.val=0.1"
            )
    return problems


def group_problem(manifest: Manifest, features: Sequence[str], group_by: str | None) -> str | None:
    """Why the rows cannot be grouped by ``group_by``; ``features`` are those that the model reads."""
    one_hot = [c.name for c in manifest.sparse if c.name in features and not c.multi_hot]
    if group_by is None or group_by in one_hot:
        return None
    return f"group_by={group_by} is no one-hot feature that the model reads: use one of {', '.join(one_hot)}"
