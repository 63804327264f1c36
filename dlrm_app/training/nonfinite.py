"""A step whose loss is NaN or inf ends the run, which says which rows and tensors are bad."""

import torch
from torch import nn

from dlrm_app.config.optimizer import OptimizerConfig
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.errors import SharedError
from dlrm_app.loader.batch import TrainBatches
from dlrm_app.runs.checkpoint.marker import Progress
from dlrm_app.text import listed


def raise_nonfinite(
    step: int,
    model: nn.Module,
    batches: TrainBatches,
    progress: Progress,
    optimizer: OptimizerConfig,
    hint: str,
) -> None:
    """Raises SharedError for ``step`` of the current epoch, whose loss was NaN or inf. Every rank must call it.

    ``batches``: the current epoch's, to say which rows they were. ``hint``: how to resume, the message's last line.
    """
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
    if columns:
        cause = f"dense column {listed(sorted({*columns}))} of its rows is not finite: preprocess them again"
    else:
        cause = (
            f"its inputs are finite, so the weights diverged (not finite now: {listed(sorted({*weights})) or 'none'}): lower "
            f"optimizer.sparse.lr ({optimizer.sparse.lr}) or optimizer.dense.lr ({optimizer.dense.lr}), "
            "choose a schedule with a warm-up, or set optimizer.dense.clip_norm"
        )
    raise SharedError(
        f"the loss was no finite number at step {step:,} (epoch {progress.epoch + 1}), on rows of {listed(rows)}\n"
        f"  {cause}\n  {hint}"
    )
