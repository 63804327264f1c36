"""When the loss is no number: at which step it began, on which rows, and which tensors are bad."""

import torch
import torch.distributed as dist

from dlrm_app.data.batch import TrainBatches
from dlrm_app.errors import SharedError
from dlrm_app.training.run import TrainingRun

FORWARD_ORDER = ("dense_arch", "embedding_bags", "inter_arch", "over_arch")
MOST_NAMED = 3


def check_finite(run: TrainingRun, batches: TrainBatches) -> None:
    """Raises SharedError if the loss of any rank was nan or inf since the epoch began. Every rank must call it.

    ``batches``: the current epoch's, to say which rows they were.
    """
    step = run.meter.first_bad_step()
    if step is None:
        return
    own = {
        "rows": batches.describe(step - 1 - (run.progress.step - run.progress.batch)),
        "inputs": _bad_columns(run, batches, step),
        "weights": _bad_weights(run),
    }
    found = [own]
    if run.runtime.world_size > 1:
        found = [{} for _ in range(run.runtime.world_size)]
        dist.all_gather_object(found, own)
    raise SharedError(_message(run, step, found))


def _message(run: TrainingRun, step: int, found: list[dict[str, list[str]]]) -> str:
    rows = [name for part in found for name in part["rows"]]
    inputs = sorted({name for part in found for name in part["inputs"]})
    weights = sorted({name for part in found for name in part["weights"]}, key=_forward_place)
    optimizer = run.config.optimizer
    if inputs:
        cause = f"dense column {_some(inputs)} of its rows is not finite: preprocess them again"
    else:
        cause = (
            f"its inputs are finite, so the weights diverged (not finite now: {_some(weights) or 'none'}): lower "
            f"optimizer.sparse.lr ({optimizer.sparse.lr}) or optimizer.dense.lr ({optimizer.dense.lr}), "
            "choose a schedule with a warm-up, or set trainer.clip_norm"
        )
    return (
        f"the loss was no finite number at step {step:,} (epoch {run.progress.epoch + 1}), "
        f"on rows of {_some(rows)}\n  {cause}\n"
        "  checkpoints from before that step are whole: resume=auto goes on from the newest"
    )


def _bad_columns(run: TrainingRun, batches: TrainBatches, step: int) -> list[str]:
    batch = batches.read(step - 1 - (run.progress.step - run.progress.batch))
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


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
