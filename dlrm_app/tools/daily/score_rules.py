"""Rules on scores: of earlier models on the day's rows, and of the new model on the held-out rows."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from dlrm_app.encoding.row_samples import Z_95
from dlrm_app.evaluation.judgement import MOST_NE, judge
from dlrm_app.evaluation.measurements import Measurements
from dlrm_app.runs.checkpoint.evaluation import UNDECIDED, Judgement
from dlrm_app.tools.daily.record import DayRecord, Scores, Verdict
from dlrm_app.tools.daily.usual import (
    ENOUGH_DAYS,
    MOST_ALLOWED,
    USUAL_CHANGES,
    ComparedDay,
    Usual,
    limit_text,
    usual,
)

_ROUNDING = 1e-9
"""Equal AUCs may differ by less than this."""


def converged(aucs: Sequence[float], drop: float) -> Sequence[float]:
    """The AUCs without those of the first days, on which the model had not converged."""
    for first in range(len(aucs)):
        if aucs[first] >= median(aucs[first:]) - drop:
            return aucs[first:]
    return aucs


def check_auc(compared: ComparedDay) -> Verdict | None:
    """Holds back a day that yesterday's model ranks worse than usual, or on the second day worse than chance."""
    now, gate = compared.day.next_day, compared.gate
    if now is None or now.auc is None or now.auc_high is None:
        return None
    aucs = [
        record.next_day.auc
        for record in compared.published
        if record.next_day and record.next_day.auc is not None
    ]
    if not aucs:  # after the first day there is no usual AUC yet
        says = (
            f"yesterday's model has an AUC of {now.auc:.4f} on it, worse than chance"
            if now.auc_high < 0.5
            else f"yesterday's model has an AUC of {now.auc:.4f} on it"
        )
        return Verdict("auc", now.auc, 0.5, now.auc_high < 0.5, says, "are labels or columns in disorder?")
    same = converged(aucs, gate.max_auc_drop)
    changes = [abs(b - a) for a, b in pairwise(same)] if len(same) >= ENOUGH_DAYS else [0.0]
    level = median(same[-gate.window :])
    drop = Usual(level, median(changes)).allowed(gate.max_auc_drop)
    says = f"yesterday's model has an AUC of {now.auc:.4f} on it, {level:.4f} on the days before"
    cure = (
        f"lower by more than {drop:.4f}, the larger of gate.max_auc_drop and {USUAL_CHANGES} times the usual change "
        f"from day to day, at most {MOST_ALLOWED} times gate.max_auc_drop: "
        "are labels or columns in disorder?"
    )
    return Verdict("auc", now.auc, level - drop, now.auc_high < level - drop, says, cure)


def _scored(compared: ComparedDay) -> list[Scores]:
    return [record.next_day for record in compared.before if record.next_day is not None]


def check_ne(compared: ComparedDay) -> Verdict | None:
    """Holds back a day on which the NE of yesterday's model is above the usual one by more than it changes."""
    now = compared.day.next_day
    level = usual(scores.ne for scores in _scored(compared) if scores.ne is not None)
    if now is None or now.ne is None or level is None:
        return None
    lowest = now.ne if not now.logloss or now.logloss_low is None else now.ne * now.logloss_low / now.logloss
    limit = level.level + level.allowed(compared.gate.max_ne_rise)
    says = (
        f"yesterday's model has an NE of {now.ne:.4f} on it (1 is the base rate alone), "
        f"{level.level:.4f} on the days before"
    )
    cure = f"a rise above {limit_text('max_ne_rise', compared.gate.max_ne_rise)} and the usual change"
    return Verdict("log loss", now.ne, limit, lowest > limit, says, cure)


def _distance(scores: Scores, level: float) -> float:
    """The distance of the logarithm of the calibration from ``level``, beyond chance."""
    low, high = scores.calibration_low or 0.0, scores.calibration_high or math.inf
    if low <= math.exp(level) <= high or scores.calibration_low is None or scores.calibration_high is None:
        return 0.0
    return min(abs(math.log(low) - level), abs(math.log(high) - level)) if low > 0 else math.inf


def check_calibration(compared: ComparedDay) -> Verdict | None:
    """Holds back a day on which yesterday's model predicts another multiple of the clicks than usual."""
    now = compared.day.next_day
    if now is None or not now.calibration:
        return None
    level = usual(math.log(each.calibration) for each in _scored(compared) if each.calibration) or Usual(
        0.0, 0.0
    )
    limit = level.allowed(math.log(compared.gate.max_calibration_change))
    says = (
        f"yesterday's model predicts {now.calibration:.3f} times its clicks, "
        f"{math.exp(level.level):.3f} on the days before"
    )
    rule = limit_text("max_calibration_change", compared.gate.max_calibration_change)
    cure = f"a factor above {rule} and the usual change: are clicks lost, or a unit changed?"
    value = math.exp(abs(math.log(now.calibration) - level.level))
    return Verdict("calibration", value, math.exp(limit), _distance(now, level.level) > limit, says, cure)


def check_learnt(compared: ComparedDay) -> Verdict | None:
    """Holds back a day whose model, or yesterday's on all rows of the day, is judged bad."""
    judgement = compared.day.judgement
    if judgement is None:
        return None
    cure = judgement.advice[0] if judgement.causes else ""
    says, holds = f"its model: {judgement.says}", judgement.is_bad
    # the held-out rows may be too few to tell a model of noise, all rows of the day may not
    if judgement.verdict == UNDECIDED and (before := _judged_before(compared.day)) and before.is_bad:
        says, holds = f"{says}; yesterday's model: {before.says}", True
        cure = "no model has learnt anything: do labels belong to their rows, on this day and those before?"
    return Verdict("learnt", judgement.measured.get("ne"), MOST_NE, holds, says, cure)


def _judged_before(day: DayRecord) -> Judgement | None:
    """The judgement of yesterday's model on all rows of the day; None if it is not known."""
    now = day.next_day
    if now is None or now.auc is None or now.ne is None or now.calibration is None or not now.logloss:
        return None
    if now.logloss_low is None or now.logloss_high is None:
        return None
    error = now.ne * (now.logloss_high - now.logloss_low) / (2 * Z_95 * now.logloss)
    effective = (now.effective[0], now.effective[1]) if now.effective else None
    found = Measurements(
        day.day, day.rows, day.positives, now.auc, now.ne, error, now.calibration, effective=effective
    )
    return judge(found, None)


def check_new_auc(compared: ComparedDay) -> Verdict | None:
    """Holds back a day whose model ranks the held-out rows significantly worse than the model before."""
    holdout = compared.day.holdout
    if holdout is None or holdout.high is None or holdout.difference is None:
        return None
    says = (
        f"its model has an AUC of {holdout.auc:.4f} on the rows held back, the one before {holdout.before:.4f}: "
        f"a difference of {holdout.difference:+.4f} (95% interval {holdout.low:+.4f} to {holdout.high:+.4f})"
    )
    is_worse = holdout.high < -_ROUNDING
    return Verdict(
        "new auc", holdout.difference, 0.0, is_worse, says, "its model is worse than the one before"
    )


def check_new_logloss(compared: ComparedDay) -> Verdict | None:
    """Holds back a day whose model has a higher log loss than the one before, beyond chance and the limit."""
    holdout = compared.day.holdout
    new, old = (holdout.scores, holdout.scores_before) if holdout else (None, None)
    if new is None or old is None or not new.logloss or not old.logloss:
        return None
    if new.logloss_low is None or old.logloss_high is None:
        return None
    rise, limit = new.logloss / old.logloss - 1, compared.gate.max_logloss_rise
    says = f"its model has a log loss of {new.logloss:.4f} on the rows held back, the one before {old.logloss:.4f}"
    cure = f"worse beyond chance, by more than {limit_text('max_logloss_rise', limit)}"
    return Verdict("new log loss", rise, limit, new.logloss_low / old.logloss_high - 1 > limit, says, cure)


def check_new_calibration(compared: ComparedDay) -> Verdict | None:
    """Holds back a day whose model predicts too many or too few clicks for the held-out rows."""
    new = compared.day.holdout.scores if compared.day.holdout else None
    if new is None or not new.calibration:
        return None
    limit = compared.gate.max_calibration
    says = f"its model predicts {new.calibration:.3f} times the clicks of the rows held back"
    value, is_off = math.exp(abs(math.log(new.calibration))), _distance(new, 0.0) > math.log(limit)
    cure = f"off by a factor above {limit_text('max_calibration', limit)}: lower the learning rate, or train on more rows"
    return Verdict("new calibration", value, limit, is_off, says, cure)
