"""Evaluates whole splits during training, with the weights and with their average, and fits the last bias."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from dlrm_app.distributed.collectives import sum_in_rank_order
from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.evaluation.evaluate import (
    Measured,
    Scored,
    TimedMetrics,
    batch_rows,
    evaluate,
    metrics_of_labels,
    metrics_where_given,
    score_rows,
)
from dlrm_app.evaluation.evidence import gather
from dlrm_app.evaluation.judgement import HIGH_AUC, judge, judged_where_given, needs_evidence
from dlrm_app.evaluation.label_rows import MAIN, LabelRows, rows_of_labels
from dlrm_app.evaluation.measurements import Measurements, TrainedSoFar
from dlrm_app.evaluation.metrics import entropy
from dlrm_app.loader.batch import EvalBatches, choose_loading
from dlrm_app.model.initial_weights import last_biases
from dlrm_app.model.labels import conditional_logits
from dlrm_app.runs.checkpoint.evaluation import Evaluation, Judgement
from dlrm_app.runs.shown_metrics import EMA_METRICS
from dlrm_app.training.state import TrainingRun
from dlrm_app.training.summary import log_evaluation

logger = logging.getLogger(__name__)


def evaluate_split(run: TrainingRun, split: str) -> None:
    """Evaluates on ``split``, if the dataset has it with labels, and writes the result."""
    if split not in run.manifest.splits or run.manifest.splits[split].positives is None:
        return
    config = run.config.evaluation
    metrics = metrics_of_labels(run.manifest, split, config.group_by, config.ranking)
    main, *others = metrics.values()
    where_given = metrics_where_given(run.manifest, split)
    ema, progress = run.state.ema, run.progress
    scores, seconds = measure(run, split, metrics | where_given, f"evaluate {split}")
    names = [label.name for label in run.manifest.other_labels]
    labels = {name: each.compute() for name, each in zip(names, others, strict=True)}
    curves = measure_curves(main.rows())
    if ema:
        with ema.in_place():
            averaged, _ = measure(run, split, {MAIN: main}, f"evaluate {split}, averaged")
        scores |= {f"ema_{name}": averaged[name] for name in EMA_METRICS}
    (first, _), *rest = [*metrics.items(), *where_given.items()]
    judgement = judge_scores(run, first, scores, main.ne_error)
    of_others = {rows: judge_scores(run, rows, each.compute(), each.ne_error) for rows, each in rest}
    judgements = {
        rows.name_in(run.manifest.labels): judged
        for rows, each in of_others.items()
        if (judged := judged_where_given(each) if rows.is_conditional else each) is not None
    }
    weights = [label.loss_weight for label in run.manifest.labels]
    evaluation = Evaluation(
        split, progress.last_epoch, progress.step, scores, judgement, labels, judgements, weights, seconds
    )
    progress.evals.append(evaluation)
    run.folder.tell(evaluation)
    run.folder.write_curves(evaluation, curves or {})
    log_evaluation(evaluation)


def measure(run: TrainingRun, split: str, metrics: Measured, title: str) -> TimedMetrics:
    """Computes ``metrics`` over every row of ``split``. Every rank must call it, with no pipeline attached."""
    with split_batches(run, split) as batches:
        return evaluate(run.forward_passes, batches, metrics, run.runtime, title)


def judge_scores(run: TrainingRun, rows: LabelRows, scores: dict[str, float], ne_error: float) -> Judgement:
    """Judges the ``scores`` of the weights on ``rows``; looks for causes unless they are good.

    Every rank must call it.
    """
    updates = run.progress.counted_updates
    found = Measurements.of(rows.split, scores, ne_error, train_ne(run), updates)
    if not needs_evidence(found) or (rows.is_conditional and found.auc <= HIGH_AUC):
        return judge(found, None)
    optimizer, progress = run.config.optimizer, run.progress
    keys = {"optimizer.dense.lr": optimizer.dense.lr, "optimizer.sparse.lr": optimizer.sparse.lr}
    with split_batches(run, rows.split) as batches:
        evidence = gather(
            run.manifest,
            rows,
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
    # a teacher's scores have an entropy of their own, and several labels have a loss each
    if run.soft_labels is not None or run.manifest.labels or not constant or math.isnan(loss):
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
    to_train = shifts_to_split(run, "train", lambda shift, error: shift)
    to_val = [0.0] * len(to_train)
    _shift_biases(run, to_train)
    if "val" in run.manifest.splits and run.manifest.splits["val"].positives is not None:
        to_val = shifts_to_split(run, "val", beyond_chance)
        _shift_biases(run, to_val)
    names = [f" of {label.name}" for label in run.manifest.labels] or [""]
    for name, *shifts in zip(names, to_train, to_val, strict=True):
        logger.info(
            "trainer.calibrate: the last bias%s is shifted by %+.4f to the train split's clicks, and by %+.4f to val's",
            name,
            *shifts,
        )


@dataclass
class _HostRows:
    """Rows of this rank in host memory, in parts: ``logits`` and ``labels`` [n, L], NaN where a row lacks a label, and
    ``weights`` [n] float64; no parts of these if rows have none.
    """

    logits: list[torch.Tensor] = field(default_factory=list)
    labels: list[torch.Tensor] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)

    def of_label(self, rows: LabelRows, logits: Sequence[torch.Tensor]) -> "_OneLabel":
        """The ``rows`` of a label, with their ``logits`` [n]."""
        outcomes = [rows.outcomes(part.t()) for part in self.labels]
        masks = [~value.isnan() for value, _ in outcomes]
        labels = [value[mask] for (value, _), mask in zip(outcomes, masks, strict=True)]
        weights = [part[mask] for part, mask in zip(self.weights, masks, strict=False)]
        counted = [
            times[mask].double()
            for (_, times), mask in zip(outcomes, masks, strict=True)
            if times is not None
        ]
        if counted:
            weights = (
                [times * part for times, part in zip(counted, weights, strict=True)] if weights else counted
            )
        if weights:
            labels = [part.double() * weight for part, weight in zip(labels, weights, strict=True)]
        clicks = sum(float(part.sum(dtype=torch.float64)) for part in labels)
        return _OneLabel(
            [part[rows] for part, rows in zip(logits, masks, strict=True)], clicks, weights, masks
        )


class _OneLabel(NamedTuple):
    """One label's rows: logits [n] in parts, the sum of positives' weights, weights [n] if rows have any, and masks."""

    logits: list[torch.Tensor]
    clicks: float
    weights: list[torch.Tensor]
    rows: list[torch.Tensor]


def shifts_to_split(run: TrainingRun, split: str, taken: Callable[[float, float], float]) -> list[float]:
    """The shift of each label on the rows of ``split``: ``taken(shift, error)`` of what ``shift_to_labels`` finds.

    The bias of a label that is given another one is fitted with that one's probabilities, once they are shifted.
    """
    scored = _collect_rows(run, split)
    found: list[float] = []
    chances: list[list[torch.Tensor]] = []
    for rows in rows_of_labels(run.manifest, split):
        number, before = rows.number, rows.given[rows.number]
        logits = [part[:, number] for part in scored.logits]
        if before is not None:
            logits = [conditional_logits(part[:, number], part[:, before]) for part in scored.logits]
        known, factors = scored.of_label(rows, logits), []
        if before is not None:
            factors = [part[mask] for part, mask in zip(chances[before], known.rows, strict=True)]
        found.append(taken(*shift_to_labels(known.logits, known.clicks, known.weights, factors)))
        if run.manifest.labels:
            shifted = [torch.sigmoid(part.double() + found[-1]) for part in logits]
            if before is not None:
                shifted = [own * part for own, part in zip(shifted, chances[before], strict=True)]
            chances.append(shifted)
    return found


def _collect_rows(run: TrainingRun, split: str) -> _HostRows:
    collected, held = _HostRows(), _HostRows()

    def keep(scored: Scored) -> None:
        # copies: a view would keep its batch alive
        supervision = scored.batch.supervision[: scored.batch.num_valid]
        held.logits.append(scored.logits.to(torch.float32, copy=True))
        held.labels.append(supervision.labels.t().clone())
        if supervision.is_weighted:
            held.weights.append(supervision.weights.clone())
        if len(held.logits) == BATCHES_HELD:
            move()

    def move() -> None:
        # to host memory: a GPU may have no room for the whole split; many at a time, for each copy waits for the GPU
        collected.logits.extend(_to_host(held.logits))
        collected.labels.extend(_to_host(held.labels))
        collected.weights.extend(part.double() for part in _to_host(held.weights))

    with split_batches(run, split) as batches:
        score_rows(run.forward_passes, batches, run.runtime, f"calibrate on {split}", keep)
    move()
    return collected


def _to_host(parts: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Empties ``parts``; returns them in host memory."""
    if not parts:
        return []
    moved = torch.split(torch.cat(parts).cpu(), [len(part) for part in parts])
    parts.clear()
    return moved


def _shift_biases(run: TrainingRun, shifts: Sequence[float]) -> None:
    for label, shift in enumerate(shifts):
        for bias in last_biases(run.trainable.model, label):
            bias.data.add_(shift)


def beyond_chance(shift: float, error: float) -> float:
    """Shrinks a measured ``shift`` by its standard ``error``: James and Stein's estimator, never below 0.

    W. James, C. Stein, Estimation with quadratic loss (1961): the shift times 1 - error²/shift².
    """
    return shift * max(0.0, 1 - (error / shift) ** 2) if shift else 0.0


def shift_to_labels(
    logits: Sequence[torch.Tensor],
    clicks: float,
    weights: Sequence[torch.Tensor] = (),
    factors: Sequence[torch.Tensor] = (),
) -> tuple[float, float]:
    """Finds, by Newton's method, the shift of all logits that fits the number of clicks, and its standard error.

    logits: this rank's, in parts [n]; clicks: the number in this rank's rows, or the sum of their weights if rows have
    ``weights`` (float64, in the same parts). ``factors``, as well: the probabilities of what a label is given, whose
    product with its own is the label's. The shift is within ±LARGEST. It is 0, with an infinite error, if every
    probability is 0 or 1, so that no shift changes them.
    """
    shift, error = 0.0, math.inf
    for _ in range(NEWTON_STEPS):
        sums = torch.tensor([clicks, 0.0, 0.0], dtype=torch.float64)
        for number, part in enumerate(logits):
            p = torch.sigmoid(part.double() + shift)
            slopes = p * (1 - p)
            spread = slopes
            if factors:
                p, slopes = p * factors[number], slopes * factors[number]
                spread = p * (1 - p)
            if weights:
                p, slopes, spread = (each * weights[number] for each in (p, slopes, spread * weights[number]))
            sums += torch.stack([-p.sum(), slopes.sum(), spread.sum()])
        missing, slope, spread_sum = sum_in_rank_order(sums).tolist()
        if slope:
            shift = min(max(shift + missing / slope, -LARGEST), LARGEST)
            error = math.sqrt(spread_sum) / slope if weights or factors else slope**-0.5
    return shift, error
