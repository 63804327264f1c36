"""Metrics of a model over a whole split, every row counted once at any number of ranks.

While a forward pass is computed, the next batch is copied to the device and its ids are exchanged.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.label_rows import LabelRows, rows_of_labels
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.batch import Batch, EvalBatches
from dlrm_app.loader.shuffled_rows import ShuffledBatches
from dlrm_app.progress import progress_bar
from dlrm_app.sharding.sharder import undisturbed


class Scored(NamedTuple):
    """A batch on the device, and the logits [B, L] of its rows, or [n, L] of those that are not padding."""

    batch: Batch
    logits: torch.Tensor


LEAST_ROWS = 4096
"""Rows of a batch on a rank if no other number is asked for."""


def batch_rows(asked: int | None, global_batch_size: int, ranks: Ranks) -> int:
    """Rows of an evaluation's batch on each rank: those ``asked`` for, or enough for the device."""
    if asked is not None:
        return asked
    # measured on CPU (benchmarks/evaluation.py): a larger batch leaves its caches
    at_training = global_batch_size // ranks.world_size if ranks.device_type == "cuda" else 0
    return max(LEAST_ROWS, 2 * at_training)


class ForwardPasses:
    """Forward passes of ``model``, a sharded ClickTask. Make one for all evaluations of a model: on a GPU it
    has two streams of its own, for which the allocator keeps the memory of their batches.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model
        # torchrec's steps only in training mode, so that it needs no optimizer here
        no_optimizer = cast(torch.optim.Optimizer, None)
        self._pipeline = TrainPipelineSparseDist(model, no_optimizer, device, custom_model_fwd=self._score)

    def _score(self, batch: Batch | None) -> tuple[torch.Tensor, Scored]:
        assert batch is not None
        loss, output = self.model(batch)
        return loss, Scored(batch, output.logits)

    def over(self, batches: EvalBatches | ShuffledBatches) -> Generator[Scored, None, None]:
        """Yields every batch with the model's logits. The model must be in evaluation mode, with no pipeline
        attached.

        Close it (``contextlib.closing``): that restores the model's forward.
        """
        stream = iter(batches)
        try:
            for _ in range(len(batches)):
                yield self._pipeline.progress(stream)
        finally:
            self._pipeline.detach()
            self._pipeline.reset()  # forgets batches that an error has left under way


Measured = Mapping[LabelRows, ClickMetrics]
"""The rows of a label → its metrics, the main one first."""


class TimedMetrics(NamedTuple):
    """The main label's metrics on a split, and the seconds that the evaluation took."""

    values: dict[str, float]
    seconds: float


def metrics_of_labels(
    manifest: Manifest, split: str, group_by: str | None, ranking: Sequence[int] = ()
) -> dict[LabelRows, ClickMetrics]:
    """Metrics to compute on ``split``: of the main label, then of each other label.

    ``ranking``: the k of the metrics within the groups of ``group_by``.
    """
    main, *others = rows_of_labels(manifest, split)
    titles = {rows: f"{rows.name_in(manifest.labels)} in {split}" for rows in others}
    return {
        rows: ClickMetrics(title, group_by, ranking=ranking)
        for rows, title in {main: split, **titles}.items()
    }


def metrics_where_given(manifest: Manifest, split: str) -> dict[LabelRows, ClickMetrics]:
    """Metrics to compute of each label that is given another one, on the rows where that one is 1."""
    found = [replace(rows, is_conditional=True) for rows in rows_of_labels(manifest, split)]
    return {
        rows: ClickMetrics(f"{rows.name_in(manifest.labels)} in {split}")
        for rows in found
        if rows.given[rows.number] is not None
        and manifest.labels[rows.number].name in manifest.splits[split].labels
    }


def evaluate(
    passes: ForwardPasses, batches: EvalBatches, metrics: Measured, runtime: Runtime, title: str
) -> TimedMetrics:
    """Fills ``metrics`` with the scores of ``batches`` by the model of ``passes``. Returns the main label's values.

    ``metrics``: those of the main label come first; each label has its own rows. The training pipeline of the model
    must be detached. Every rank must call it, and all return the same values.
    """
    started = time.perf_counter()
    main, *_ = metrics.values()
    for each in metrics.values():
        each.reset()
    group_by = main.group_by
    keys = None if group_by is None else runtime.together(lambda: batches.kept_keys(group_by))
    num_rows = 0

    def add(scored: Scored) -> None:
        nonlocal num_rows
        batch, logits = scored
        rows, groups = slice(batch.num_valid), None
        if keys is not None:
            groups = keys[num_rows : num_rows + batch.num_valid].to(logits.device)
        elif group_by is not None:
            groups = batch.sparse_features[group_by].values()[rows]
        num_rows += batch.num_valid
        supervision = batch.supervision[rows]
        for label, each in metrics.items():
            its_rows, chosen = label.scored(logits, supervision)
            each.update(its_rows, None if groups is None else groups[chosen])

    score_rows(passes, batches, runtime, title, add)
    return TimedMetrics(main.compute(), time.perf_counter() - started)


# not inference_mode: what modules keep of a first pass would be refused by the next backward pass
@torch.no_grad()
def score_rows(
    passes: ForwardPasses, batches: EvalBatches, runtime: Runtime, title: str, take: Callable[[Scored], None]
) -> None:
    """Gives ``take`` every batch, on the device, with the logits [n, L] of its rows, as ``evaluate`` does."""
    model, closed = passes.model.eval(), closing(passes.over(batches))
    with progress_bar(title, len(batches), runtime.is_first) as bar, undisturbed(model), closed as scored:
        for batch, logits in scored:
            take(Scored(batch, logits[: batch.num_valid]))
            bar.update(1)
    model.train()
