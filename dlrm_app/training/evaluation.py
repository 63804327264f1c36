"""Whole splits measured while training: evaluations with the weights and their average, and the fit of the last bias."""

import logging
import math
from collections.abc import Sequence

import torch

from dlrm_app.distributed.collectives import sum_in_rank_order
from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.evaluation.evaluate import batch_rows, evaluate, score_rows
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.batch import Batch, EvalBatches, choose_loading
from dlrm_app.model.initial_weights import last_biases
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.training.state import TrainingRun
from dlrm_app.training.summary import log_evaluation

logger = logging.getLogger(__name__)

EMA_METRICS = ("auc", "logloss", "calibration")
"""Metrics that an evaluation also reports for the averaged dense weights, named ema_*."""


def evaluate_split(run: TrainingRun, split: str) -> None:
    """Evaluates on ``split``, if the dataset has it with labels, and writes what it finds."""
    if split not in run.manifest.splits or run.manifest.splits[split].positives is None:
        return
    metrics = ClickMetrics(split, run.config.evaluation.group_by)
    ema, progress = run.state.ema, run.progress
    scores = measure(run, split, metrics, f"evaluate {split}")
    curves = measure_curves(*metrics.rows())
    if ema:
        with ema.in_place():
            averaged = measure(run, split, metrics, f"evaluate {split}, averaged")
        scores |= {f"ema_{name}": averaged[name] for name in EMA_METRICS}
    evaluation = Evaluation(split, progress.last_epoch, progress.step, scores)
    progress.evals.append(evaluation)
    run.folder.tell(evaluation)
    run.folder.write_curves(evaluation, curves or {})
    log_evaluation(evaluation)


def measure(run: TrainingRun, split: str, metrics: ClickMetrics, title: str) -> dict[str, float]:
    """The ``metrics`` of every row of ``split``. Every rank must call it, with no pipeline attached."""
    with split_batches(run, split) as batches:
        return evaluate(run.forward_passes, batches, metrics, run.runtime, title)


def split_batches(run: TrainingRun, split: str) -> EvalBatches:
    """This rank's batches of ``split``, in the order of its files, as the run evaluates on them."""
    config, runtime = run.config, run.runtime
    return EvalBatches(
        run.manifest,
        split,
        run.trainable.features,
        batch_size=batch_rows(
            config.evaluation.batch_size,
            config.trainer.global_batch_size,
            runtime.world_size,
            runtime.device_type,
        ),
        rank=runtime.rank,
        world_size=runtime.world_size,
        loading=choose_loading(config.data.prefetch_batches, config.data.decode_workers, runtime),
    )


LARGEST = 1.0
"""The largest shift: a run that needs more has not learnt the share of clicks, which no bias corrects."""
NEWTON_STEPS = 4
"""Each doubles the digits, and the second is nearly exact already."""


def fit_final_bias(run: TrainingRun) -> None:
    """Shifts every last bias to the train split's clicks, then to val's by what these say beyond chance.

    Val's rows are mostly the newest. Every rank must call it, with no pipeline attached. An ensemble's models are
    shifted by the same number, found for the mean of their probabilities.
    """
    to_train, _ = _shift_to_split(run, "train")
    to_val = 0.0
    _shift_biases(run, to_train)
    if "val" in run.manifest.splits and run.manifest.splits["val"].positives is not None:
        to_val = beyond_chance(*_shift_to_split(run, "val"))
        _shift_biases(run, to_val)
    logger.info(
        "trainer.calibrate: the last bias is shifted by %+.4f to the train split's clicks, and by %+.4f to val's",
        to_train,
        to_val,
    )


def _shift_to_split(run: TrainingRun, split: str) -> tuple[float, float]:
    """``shift_to_labels`` of the rows of ``split``."""
    kept: list[torch.Tensor] = []
    clicks = 0.0

    def keep(batch: Batch, logits: torch.Tensor) -> None:
        nonlocal clicks
        # in host memory: a split may have more rows than a GPU has room for; copies, for a view would keep its batch
        kept.append(logits.to("cpu", torch.float32, copy=True))
        clicks += batch.labels[: batch.num_valid].sum().item()

    with split_batches(run, split) as batches:
        score_rows(run.forward_passes, batches, run.runtime, f"calibrate on {split}", keep)
    return shift_to_labels(kept, clicks)


def _shift_biases(run: TrainingRun, shift: float) -> None:
    for bias in last_biases(run.trainable.model):
        bias.data.add_(shift)


def beyond_chance(shift: float, error: float) -> float:
    """The part of a measured ``shift`` that its standard ``error`` leaves: James and Stein's estimator, never below 0.

    W. James, C. Stein, Estimation with quadratic loss (1961): 1 - error²/shift² of it.
    """
    return shift * max(0.0, 1 - (error / shift) ** 2) if shift else 0.0


def shift_to_labels(logits: Sequence[torch.Tensor], clicks: float) -> tuple[float, float]:
    """The shift of all ranks' logits with which probabilities add up to clicks, by Newton's method; its standard error.

    logits: parts [n] of this rank's, clicks: of its rows. Within ±LARGEST; 0, with an error of
    infinity, where the logits are all sure, so that no shift counts.
    """
    shift, error = 0.0, math.inf
    for _ in range(NEWTON_STEPS):
        sums = torch.tensor([clicks, 0.0], dtype=torch.float64)
        for part in logits:
            p = torch.sigmoid(part.double() + shift)
            sums += torch.stack([-p.sum(), (p * (1 - p)).sum()])
        missing, slope = sum_in_rank_order(sums).tolist()
        if slope:
            shift, error = min(max(shift + missing / slope, -LARGEST), LARGEST), slope**-0.5
    return shift, error
