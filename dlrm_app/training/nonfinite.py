"""When the loss is no number: at which step it began, on which rows, and which tensors are bad."""

import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dlrm_app.data.batch import TrainBatches
from dlrm_app.display.text import listed
from dlrm_app.errors import SharedError
from dlrm_app.sharding.fused_counters import uncount_step
from dlrm_app.training.run import TrainingRun

logger = logging.getLogger(__name__)

FORWARD_ORDER = ("dense_arch", "embedding_bags", "inter_arch", "over_arch")


@dataclass(frozen=True)
class BadStep:
    """A step whose loss is no finite number, over all ranks: its rows, its bad dense columns, the bad weights now."""

    step: int
    rows: list[str]
    columns: list[str]
    weights: list[str]


def check_finite(run: TrainingRun, batches: TrainBatches) -> None:
    """Raises SharedError if the loss of any rank was nan or inf since the epoch began. Every rank must call it.

    ``batches``: the current epoch's, to say which rows they were.
    """
    step = run.meter.first_bad_step()
    if step is not None:
        bad = find_bad(run, batches, step)
        raise SharedError(
            f"the loss was no finite number at step {step:,} (epoch {run.progress.epoch + 1}), "
            f"on rows of {listed(bad.rows)}\n  {_cause(run, bad)}\n"
            "  checkpoints from before that step are whole: resume=auto goes on from the newest"
        )


def count_skipped(run: TrainingRun, batches: TrainBatches) -> None:
    """Counts the step that was just skipped and says which rows it had. Every rank must call it.

    Raises SharedError after more than trainer.max_skipped of them, and at once if weights are no numbers already: a
    gradient was none at a finite loss, which is seen too late to skip it, and no later step would be better.
    """
    progress, limit = run.progress, run.config.trainer.max_skipped
    progress.skipped.append(progress.step)
    uncount_step(run.trainable.model)
    bad = find_bad(run, batches, progress.step)
    run.folder.log_event("skip", epoch=progress.epoch, step=progress.step, rows=bad.rows, columns=bad.columns)
    place = f"step {bad.step:,} (epoch {progress.epoch + 1})"
    columns = f" (not finite: dense column {listed(bad.columns)})" if bad.columns else ""
    if run.runtime.is_first:
        logger.warning(
            "%s skipped: its loss was no finite number, on rows of %s%s; %d skipped so far",
            place,
            listed(bad.rows),
            columns,
            len(progress.skipped),
        )
    if bad.weights:
        raise SharedError(
            f"at {place} the weights were no finite numbers already, so skipping steps does not help\n"
            f"  {_diverged(run, bad)}\n  resume=auto goes on from the newest checkpoint, from before that"
        )
    if len(progress.skipped) > limit:
        raise SharedError(
            f"{len(progress.skipped)} steps were skipped, the last at {place}, more than trainer.max_skipped={limit}\n"
            f"  {_cause(run, bad)}\n  or allow more, with trainer.max_skipped"
        )


def find_bad(run: TrainingRun, batches: TrainBatches, step: int) -> BadStep:
    """What can be said of ``step``, of the current epoch, by all ranks together."""
    batch = step - 1 - (run.progress.step - run.progress.batch)
    own = (batches.describe(batch), _bad_columns(run, batches, batch), _bad_weights(run))
    found = [own]
    if run.runtime.world_size > 1:
        found = [own] * run.runtime.world_size
        dist.all_gather_object(found, own)
    rows, columns, weights = ([name for part in parts for name in part] for parts in zip(*found, strict=True))
    return BadStep(step, rows, sorted(set(columns)), sorted(set(weights), key=_forward_place))


def _cause(run: TrainingRun, bad: BadStep) -> str:
    if bad.columns:
        return f"dense column {listed(bad.columns)} of its rows is not finite: preprocess them again"
    return f"its inputs are finite, so {_diverged(run, bad)}"


def _diverged(run: TrainingRun, bad: BadStep) -> str:
    optimizer = run.config.optimizer
    return (
        f"the weights diverged (not finite now: {listed(bad.weights) or 'none'}): lower "
        f"optimizer.sparse.lr ({optimizer.sparse.lr}) or optimizer.dense.lr ({optimizer.dense.lr}), "
        "choose a schedule with a warm-up, or set optimizer.dense.clip_norm"
    )


def _bad_columns(run: TrainingRun, batches: TrainBatches, number: int) -> list[str]:
    batch = batches.read(number)
    bad = ~torch.isfinite(batch.dense_features).all(dim=0)
    return [column.name for column, is_bad in zip(run.manifest.dense, bad.tolist(), strict=True) if is_bad]


def _bad_weights(run: TrainingRun) -> list[str]:
    return [
        name.removeprefix("model.").removeprefix("sparse_arch.embedding_bag_collection.")
        for name, weight in run.trainable.model.named_parameters()
        if weight.numel() and not torch.isfinite(weight).all()
    ]


def _forward_place(name: str) -> int:
    return next((place for place, part in enumerate(FORWARD_ORDER) if part in name), len(FORWARD_ORDER))
