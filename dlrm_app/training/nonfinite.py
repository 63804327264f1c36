"""A step whose loss is NaN or inf ends the run, which says which rows and tensors are bad."""

import torch

from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.errors import SharedError
from dlrm_app.loader.batch import TrainBatches
from dlrm_app.runs.checkpoint.names import resume_hint
from dlrm_app.text import listed
from dlrm_app.training.state import TrainingRun


def check_finite(run: TrainingRun, batches: TrainBatches) -> None:
    """Raises SharedError if a loss of the current epoch, whose ``batches`` these are, was NaN or inf on any rank.

    Every rank must call it.
    """
    step, progress = run.state.meter.first_bad_step(), run.progress
    if step is None:
        return
    batch = step - 1 - (progress.step - progress.batch)
    is_bad = ~torch.isfinite(batches.read(batch).dense_features).all(dim=0)
    columns = [name for name, bad in zip(batches.dense_columns, is_bad.tolist(), strict=True) if bad]
    weights = [
        name.removeprefix("model.").removeprefix("sparse_arch.embedding_bag_collection.")
        for name, weight in run.trainable.model.named_parameters()
        if not torch.isfinite(weight).all()
    ]
    by_rank = all_gather_objects((batches.describe(batch), columns, weights))
    rows, columns, weights = (
        [name for part in parts for name in part] for parts in zip(*by_rank, strict=True)
    )
    if columns:
        cause = f"dense column {listed(sorted({*columns}))} of its rows is not finite: preprocess them again"
    else:
        optimizer = run.config.optimizer
        cause = (
            f"its inputs are finite, so the weights diverged (not finite now: {listed(sorted({*weights})) or 'none'}): lower "
            f"optimizer.sparse.lr ({optimizer.sparse.lr}) or optimizer.dense.lr ({optimizer.dense.lr}), "
            "choose a schedule with a warm-up, or set optimizer.dense.clip_norm"
        )
    raise SharedError(
        f"the loss was no finite number at step {step:,} (epoch {progress.epoch + 1}), on rows of {listed(rows)}\n"
        f"  {cause}\n  {resume_hint(run.folder.path / 'checkpoints')}"
    )
