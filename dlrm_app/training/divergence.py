"""A loss of NaN or inf ends a run, with the cause: the batch's inputs, their scale, or the weights."""

import torch

from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.errors import Problem, SharedError
from dlrm_app.evaluation.causes import scale_cause
from dlrm_app.loader.batch import TrainBatches
from dlrm_app.runs.checkpoint.names import checkpoints_of, resume_hint
from dlrm_app.runs.checkpoint.save import is_finite
from dlrm_app.text import listed
from dlrm_app.training.state import TrainingRun


def check_finite(run: TrainingRun, batches: TrainBatches) -> None:
    """Raises SharedError if a loss of the current epoch was NaN or inf on any rank. ``batches``: the epoch's batches.

    Every rank must call it.
    """
    step = run.state.meter.first_bad_step()
    if step is not None:
        raise SharedError(_why_not_finite(run, batches, step))


def _why_not_finite(run: TrainingRun, batches: TrainBatches, step: int) -> Problem:
    """The cause of a loss that was not finite at ``step``: the batch's inputs, their scale, or the weights."""
    progress = run.progress
    batch = step - 1 - (progress.step - progress.batch)
    dense = batches.read(batch).dense_features.double()
    is_bad = ~torch.isfinite(dense).all(dim=0)
    columns = [name for name, bad in zip(batches.dense_columns, is_bad.tolist(), strict=True) if bad]
    sizes = dense.square().mean(dim=0).sqrt().tolist()
    scales = dict(zip(batches.dense_columns, sizes, strict=True))
    weights = [
        name.removeprefix("model.").removeprefix("sparse_arch.embedding_bag_collection.")
        for name, weight in run.trainable.model.named_parameters()
        if not is_finite(weight)
    ]
    by_rank = all_gather_objects((batches.describe(batch), columns, weights))
    rows, columns, weights = (
        [name for part in parts for name in part] for parts in zip(*by_rank, strict=True)
    )
    scale = scale_cause(all_gather_objects(scales)[0])
    if columns:
        cause = f"dense column {listed(sorted({*columns}))} of its rows is not finite: preprocess them again"
    elif scale is not None:
        cause = f"{scale.measured}: {scale.cure}"
    else:
        optimizer = run.config.optimizer
        cause = (
            "its inputs are finite, so the weights diverged (not finite now: "
            f"{listed(sorted({*weights})) or 'none'}): lower "
            f"optimizer.sparse.lr ({optimizer.sparse.lr}) or optimizer.dense.lr ({optimizer.dense.lr}), "
            "choose a schedule with a warm-up, or set optimizer.dense.clip_norm"
        )
    rule = f"was not finite at step {step:,} (epoch {progress.epoch + 1}), on rows of {listed(rows)}"
    hint = resume_hint(checkpoints_of(run.folder.path))
    return Problem("the loss", rule, f"{cause}\n  {hint}")
