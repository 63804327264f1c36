"""Evaluates whole splits during training, with the weights and with their average, and fits the last bias."""

import logging
import math
from collections.abc import Sequence

import torch

from dlrm_app.distributed.collectives import sum_in_rank_order
from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.evaluation.evaluate import batch_rows, evaluate, score_rows
from dlrm_app.evaluation.evidence import gather
from dlrm_app.evaluation.judgement import Measurements, TrainedSoFar, judge, needs_evidence
from dlrm_app.evaluation.metrics import ClickMetrics, entropy
from dlrm_app.loader.batch import Batch, EvalBatches, choose_loading
from dlrm_app.model.initial_weights import last_biases
from dlrm_app.runs.checkpoint.marker import Evaluation, Judgement
from dlrm_app.runs.shown_metrics import EMA_METRICS
from dlrm_app.training.state import TrainingRun
from dlrm_app.training.summary import log_evaluation

logger = logging.getLogger(__name__)


def evaluate_split(run: TrainingRun, split: str) -> None:
    """Evaluates on ``split``, if the dataset has it with labels, and writes the result."""
    if split not in run.manifest.splits or run.manifest.splits[split].positives is None:
        return
    metrics = ClickMetrics(split, run.config.evaluation.group_by)
    ema, progress = run.state.ema, run.progress
    scores = measure(run, split, metrics, f"evaluate {split}")
    curves = measure_curves(*metrics.rows(), metrics.row_weights())
    if ema:
        with ema.in_place():
            averaged = measure(run, split, metrics, f"evaluate {split}, averaged")
        scores |= {f"ema_{name}": averaged[name] for name in EMA_METRICS}
    judgement = judge_scores(run, split, scores, metrics.ne_error)
    evaluation = Evaluation(split, progress.last_epoch, progress.step, scores, judgement)
    progress.evals.append(evaluation)
    run.folder.tell(evaluation)
    run.folder.write_curves(evaluation, curves or {})
    log_evaluation(evaluation)


def measure(run: TrainingRun, split: str, metrics: ClickMetrics, title: str) -> dict[str, float]:
    """Computes ``metrics`` over every row of ``split``. Every rank must call it, with no pipeline attached."""
    with split_batches(run, split) as batches:
        return evaluate(run.forward_passes, batches, metrics, run.runtime, title)


def judge_scores(run: TrainingRun, split: str, scores: dict[str, float], ne_error: float) -> Judgement:
    """Judges the ``scores`` of the weights on ``split``; looks for causes unless they are good.

    Every rank must call it.
    """
    found = Measurements.of(split, scores, ne_error, train_ne(run), run.progress.counted_updates)
    if not needs_evidence(found):
        return judge(found, None)
    optimizer, progress = run.config.optimizer, run.progress
    keys = {"optimizer.dense.lr": optimizer.dense.lr, "optimizer.sparse.lr": optimizer.sparse.lr}
    with split_batches(run, split) as batches:
        evidence = gather(
            run.manifest,
            split,
            run.trainable.tables,
            run.forward_passes,
            batches,
            run.runtime,
            TrainedSoFar(
                progress.counted_updates,
                progress.samples,
                keys,
                planned=run.num_steps + progress.earlier_updates,
            ),
        )
    return judge(found, evidence)


def train_ne(run: TrainingRun) -> float | None:
    """The mean loss of the epoch so far over that of a constant; None if they cannot be compared.

    Every rank must call it.
    """
    progress = run.progress
    loss = run.state.meter.mean_so_far() if progress.batch else (progress.train_loss or [math.nan])[-1]
    clicks, rows = run.manifest.clicks_and_rows("train", all_negatives=False)  # as the loss counts them
    constant = entropy(clicks / (rows or 1))
    # a teacher's scores have an entropy of their own
    if run.soft_labels is not None or not constant or math.isnan(loss):
        return None
    return loss / constant


def split_batches(run: TrainingRun, split: str) -> EvalBatches:
    """This rank's batches of ``split``, in the order of its files, as the run evaluates on them."""
    config, runtime = run.config, run.runtime
    return EvalBatches(
        run.manifest,
        split,
        run.trainable.features,
        batch_size=batch_rows(config.evaluation.batch_size, config.trainer.global_batch_size, runtime),
        rank=runtime.rank,
        world_size=runtime.world_size,
        loading=choose_loading(config.data.prefetch_batches, config.data.decode_workers, runtime),
    )


BATCHES_HELD = 128
"""Batches whose logits stay on the device before they are copied to the host together."""
LARGEST = 1.0
"""The largest shift. A run that needs a larger one has not learnt the share of clicks, and no bias corrects that."""
NEWTON_STEPS = 4
"""Newton steps. Each doubles the number of correct digits; the second is nearly exact already."""


def fit_final_bias(run: TrainingRun) -> None:
    """Shifts every last bias to fit the train split's clicks, then val's, by the part that is not chance.

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
    weights: list[torch.Tensor] = []
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    clicks = 0.0

    def keep(batch: Batch, logits: torch.Tensor) -> None:
        # copies: a view would keep its batch alive
        labels = batch.labels[: batch.num_valid]
        if batch.weights is not None:
            weights.append(batch.weights[: batch.num_valid].to("cpu", torch.float64, copy=True))
            labels = labels.double() * batch.weights[: batch.num_valid]
        held.append((logits.to(torch.float32, copy=True), labels.sum()))
        if len(held) == BATCHES_HELD:
            move()

    def move() -> None:
        # to host memory: a GPU may have no room for the whole split; many at a time, for each copy waits for the GPU
        nonlocal clicks
        if held:
            logits, counts = zip(*held, strict=True)
            kept.extend(torch.split(torch.cat(logits).cpu(), [len(part) for part in logits]))
            clicks += torch.stack(counts).double().sum().item()
            held.clear()

    with split_batches(run, split) as batches:
        score_rows(run.forward_passes, batches, run.runtime, f"calibrate on {split}", keep)
    move()
    return shift_to_labels(kept, clicks, weights or None)


def _shift_biases(run: TrainingRun, shift: float) -> None:
    for bias in last_biases(run.trainable.model):
        bias.data.add_(shift)


def beyond_chance(shift: float, error: float) -> float:
    """Shrinks a measured ``shift`` by its standard ``error``: James and Stein's estimator, never below 0.

    W. James, C. Stein, Estimation with quadratic loss (1961): the shift times 1 - error²/shift².
    """
    return shift * max(0.0, 1 - (error / shift) ** 2) if shift else 0.0


def shift_to_labels(
    logits: Sequence[torch.Tensor], clicks: float, weights: Sequence[torch.Tensor] | None = None
) -> tuple[float, float]:
    """Finds, by Newton's method, the shift of all logits that fits the number of clicks, and its standard error.

    logits: this rank's, in parts [n]; clicks: the number in this rank's rows, or the sum of their weights if rows have
    ``weights`` (float64, in the same parts). The shift is within ±LARGEST. It is 0, with an infinite error, if every
    probability is 0 or 1, so that no shift changes them.
    """
    shift, error = 0.0, math.inf
    for _ in range(NEWTON_STEPS):
        sums = torch.tensor([clicks, 0.0, 0.0], dtype=torch.float64)
        for number, part in enumerate(logits):
            p = torch.sigmoid(part.double() + shift)
            slopes = p * (1 - p)
            spread = slopes
            if weights is not None:
                p, slopes, spread = (each * weights[number] for each in (p, slopes, slopes * weights[number]))
            sums += torch.stack([-p.sum(), slopes.sum(), spread.sum()])
        missing, slope, spread_sum = sum_in_rank_order(sums).tolist()
        if slope:
            shift = min(max(shift + missing / slope, -LARGEST), LARGEST)
            error = slope**-0.5 if weights is None else math.sqrt(spread_sum) / slope
    return shift, error
