"""Metrics of a model over a whole split, every row counted once at any number of ranks.

While a forward pass is computed, the next batch is copied to the device and its ids are exchanged.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import NamedTuple, cast

import torch
from torch import nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.batch import Batch, EvalBatches
from dlrm_app.progress import progress_bar
from dlrm_app.sharding.sharder import undisturbed


class Scored(NamedTuple):
    """A batch on the device, and its logits [B]; ``further`` [B, L - 1]: those of further labels, if there are any."""

    batch: Batch
    logits: torch.Tensor
    further: torch.Tensor | None = None


LEAST_ROWS = 4096
"""Rows of a batch on a rank, where nothing else is asked for."""


def batch_rows(asked: int | None, global_batch_size: int, ranks: Ranks) -> int:
    """Rows of an evaluation's batch on each rank: those ``asked`` for, or enough for the device."""
    if asked is not None:
        return asked
    # measured on CPU (benchmarks/evaluation.py): a larger batch leaves its caches
    at_training = global_batch_size // ranks.world_size if ranks.device_type == "cuda" else 0
    return max(LEAST_ROWS, 2 * at_training)


class ForwardPasses:
    """Forward passes of ``model``, a sharded ClickTask. One for all evaluations of a model: on a GPU it has two
    streams of its own, for which the allocator keeps the memory of their batches.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model
        # torchrec's steps only in training mode, so that it needs no optimizer here
        no_optimizer = cast(torch.optim.Optimizer, None)
        self._pipeline = TrainPipelineSparseDist(model, no_optimizer, device, custom_model_fwd=self._score)

    def _score(self, batch: Batch | None) -> tuple[torch.Tensor, Scored]:
        assert batch is not None
        loss, (_, logits, _, _, further) = self.model(batch)
        return loss, Scored(batch, logits, further)

    def over(self, batches: EvalBatches) -> Generator[Scored, None, None]:
        """Every batch with its logits by the model, which is in evaluation mode and which no pipeline is attached to.

        Close it (``contextlib.closing``): then the model's forward is its own again.
        """
        stream = iter(batches)
        try:
            for _ in range(len(batches)):
                yield self._pipeline.progress(stream)
        finally:
            self._pipeline.detach()
            self._pipeline.reset()  # forgets batches that an error has left under way


def evaluate(
    passes: ForwardPasses,
    batches: EvalBatches,
    metrics: ClickMetrics,
    runtime: Runtime,
    title: str,
    further: Sequence[ClickMetrics] = (),
) -> dict[str, float]:
    """Metrics of the model of ``passes``, its training pipeline detached, over ``batches``.

    The same on every rank. Adds ``seconds``, the time it took. ``further`` get the rows that have each further label.
    """
    started = time.perf_counter()
    for each in (metrics, *further):
        each.reset()
    group_by = metrics.group_by
    kept = None if group_by is None else runtime.together(lambda: batches.kept_keys(group_by))
    seen = 0

    def add(scored: Scored) -> None:
        nonlocal seen
        batch, logits, others = scored
        rows, groups = slice(batch.num_valid), None
        if kept is not None:
            groups = kept[seen : seen + batch.num_valid].to(logits.device)
        elif group_by is not None:
            groups = batch.sparse_features[group_by].values()[rows]
        seen += batch.num_valid
        weights = None if batch.weights is None else batch.weights[rows]
        metrics.update(logits, batch.labels[rows], groups, weights)
        for number, each in enumerate(further):
            assert others is not None
            assert batch.further is not None
            labels = batch.further[number, rows]
            known = ~labels.isnan()
            its_groups, its_weights = (
                None if values is None else values[known] for values in (groups, weights)
            )
            each.update(others[:, number][known], labels[known], its_groups, its_weights)

    score_rows(passes, batches, runtime, title, add)
    values = metrics.compute()
    return {**values, "seconds": time.perf_counter() - started}


# not inference_mode: what modules keep of a first pass would be refused by the next backward pass
@torch.no_grad()
def score_rows(
    passes: ForwardPasses,
    batches: EvalBatches,
    runtime: Runtime,
    title: str,
    take: Callable[[Scored], None],
) -> None:
    """Gives ``take`` every batch, on the device, with the logits [n] of its rows, as ``evaluate`` does."""
    model, closed = passes.model.eval(), closing(passes.over(batches))
    with progress_bar(title, len(batches), runtime.is_first) as bar, undisturbed(model), closed as scored:
        for batch, logits, further in scored:
            rows = slice(batch.num_valid)
            take(Scored(batch, logits[rows], None if further is None else further[rows]))
            bar.update(1)
    model.train()
