"""Steps whose loss is nan or inf: they end the run or are skipped, and it is said which rows and tensors are bad."""

import logging
from dataclasses import dataclass

import torch
from torch import nn

from dlrm_app.config.optimizer import OptimizerConfig
from dlrm_app.distributed.collectives import (
    all_gather_objects,
    current_rank,
    is_any,
    new_group,
)
from dlrm_app.errors import SharedError
from dlrm_app.loader.batch import TrainBatches
from dlrm_app.runs.checkpoint.marker import Progress
from dlrm_app.sharding.sharder import uncount_step
from dlrm_app.text import listed

logger = logging.getLogger(__name__)


class NonfiniteGuard(nn.Module):
    """Stands behind the loss of a ClickTask and keeps what is nan or inf on some rank from being trained on.

    ``skips`` (trainer.on_nonfinite=skip): such a loss is replaced by one that reaches no parameter. A backward pass
    from there computes nothing: no table is updated inside it, no gradient arises, and optimizers leave what has no
    gradient as it is. Multiplying by zero would not do: 0 · inf is nan in the gradients, and moments and weight decay
    move weights under gradients of zero too. This waits for the loss and, with several ranks, for a message between
    them, in every step. Else every loss passes, and ``LossMeter.first_bad_step`` tells later, without slowing steps.

    A module, so that the pipelines, which trace the model, take it as a whole. Every rank makes one.
    """

    def __init__(self, skips: bool) -> None:
        super().__init__()
        self._skips = skips
        self._group = new_group() if skips else None
        self.has_skipped = False
        """True if the last step was skipped; the same on every rank."""

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        """[] → []; evaluation passes unchanged."""
        if not (self._skips and self.training):
            return loss
        self.has_skipped = is_any(not bool(torch.isfinite(loss)), self._group)
        return torch.zeros_like(loss).requires_grad_() if self.has_skipped else loss


@dataclass(frozen=True)
class NonfiniteStep:
    """A step of ``epoch`` whose loss was nan or inf, over all ranks: its rows, bad dense columns, bad weights now."""

    step: int
    epoch: int
    rows: list[str]
    columns: list[str]
    weights: list[str]

    def __str__(self) -> str:
        return f"step {self.step:,} (epoch {self.epoch + 1})"


def raise_if_nonfinite(
    step: int | None,
    model: nn.Module,
    batches: TrainBatches,
    progress: Progress,
    optimizer: OptimizerConfig,
    hint: str,
) -> None:
    """Raises SharedError if there is a ``step`` of the epoch whose loss was nan or inf. Every rank must call it.

    ``batches``: the current epoch's, to say which rows they were. ``hint``: how to resume, the message's last line.
    """
    if step is not None:
        bad = diagnose(step, model, batches, progress)
        rows = listed(bad.rows)
        raise SharedError(
            f"the loss was no finite number at {bad}, on rows of {rows}\n  {_cause(bad, optimizer)}\n  {hint}"
        )


def record_skip(model: nn.Module, batches: TrainBatches, progress: Progress) -> NonfiniteStep:
    """Counts the last step as skipped and says which rows it had. Every rank must call it."""
    progress.skipped.append(progress.step)
    uncount_step(model)
    bad = diagnose(progress.step, model, batches, progress)
    if current_rank() == 0:
        logger.warning("%s skipped: its loss was no finite number, on rows of %s", bad, listed(bad.rows))
    return bad


def raise_if_skips_are_useless(
    bad: NonfiniteStep, num_skipped: int, max_skipped: int, optimizer: OptimizerConfig, hint: str
) -> None:
    """Raises SharedError after more than ``max_skipped`` steps, and at once if weights are nan or inf already.

    Then a gradient was at a finite loss, which is seen too late to skip it, and no later step would be better.
    """
    if bad.weights:
        reason = f"at {bad} the weights were no finite numbers already, so skipping steps does not help"
    elif num_skipped > max_skipped:
        reason = f"{num_skipped} steps were skipped, the last at {bad}, more than trainer.max_skipped={max_skipped}"
    else:
        return
    raise SharedError(f"{reason}\n  {_cause(bad, optimizer)}\n  {hint}")


def diagnose(step: int, model: nn.Module, batches: TrainBatches, progress: Progress) -> NonfiniteStep:
    """Describes ``step`` of the current epoch, by all ranks together."""
    batch = step - 1 - (progress.step - progress.batch)
    is_bad = ~torch.isfinite(batches.read(batch).dense_features).all(dim=0)
    columns = [name for name, bad in zip(batches.dense_columns, is_bad.tolist(), strict=True) if bad]
    weights = [
        name.removeprefix("model.").removeprefix("sparse_arch.embedding_bag_collection.")
        for name, weight in model.named_parameters()
        if not torch.isfinite(weight).all()
    ]
    by_rank = all_gather_objects((batches.describe(batch), columns, weights))
    rows, columns, weights = (
        [name for part in parts for name in part] for parts in zip(*by_rank, strict=True)
    )
    return NonfiniteStep(step, progress.epoch, rows, sorted(set(columns)), sorted(set(weights)))


def _cause(bad: NonfiniteStep, optimizer: OptimizerConfig) -> str:
    if bad.columns:
        return f"dense column {listed(bad.columns)} of its rows is not finite: preprocess them again"
    return (
        f"its inputs are finite, so the weights diverged (not finite now: {listed(bad.weights) or 'none'}): lower "
        f"optimizer.sparse.lr ({optimizer.sparse.lr}) or optimizer.dense.lr ({optimizer.dense.lr}), "
        "choose a schedule with a warm-up, or set optimizer.dense.clip_norm"
    )
