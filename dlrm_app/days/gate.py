"""The gate: rules that hold a day back. Before training: the number of rows, labels of one class alone, the share of new values,
and the score of yesterday's model. After training: the new model must have learnt, and must not be worse than yesterday's on the held-out rows.

If a day's labels are shuffled, those of its held-out rows are too, and no model is better than another there. Only the
rules before training find such a day.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from dlrm_app.config.days import DaysSettings
from dlrm_app.days.record import DayRecord, Holdout, Scores
from dlrm_app.runs.checkpoint.marker import Judgement
from dlrm_app.text import percent

USUAL_CHANGES = 4
"""A drop of up to this many usual changes of the AUC from day to day is no sign of damage: tastes drift, and some days are harder."""

CHANCE = 0.05
"""A day with rows of one class is held back if this is less likely than CHANCE: clicks may be rare, and days small."""


def reason_before(
    rows: int,
    positives: int,
    unseen: Mapping[str, float],
    next_day: Scores | None,
    before: Sequence[DayRecord],
    settings: DaysSettings,
) -> str | None:
    """The reason why a day is held back before training; None if it is not. ``before``: the days published before it, in order."""
    if fault := _one_class(rows, positives, before):
        return fault
    if not before:
        return None
    of_all_days, before = _aucs(before), before[-(settings.replay_window or 1) :]
    usual_rows = median(record.rows for record in before)
    if rows < settings.min_rows * usual_rows:
        share = f"days.min_rows={settings.min_rows:g}"
        return f"its {rows:,} rows are less than {share} of the {usual_rows:,.0f} of the days before"
    known = [record for record in before if record.unseen]
    for feature, share_now in unseen.items() if known else ():
        most = max(record.unseen.get(feature, 1.0) for record in known)
        if share_now - most > settings.max_unseen_rise:
            return (
                f"{percent(share_now)} of the lookups in {feature} are of values never seen, {percent(most)} on the days before: "
                f"more than days.max_unseen_rise={settings.max_unseen_rise:g} above"
            )
    changes = [abs(now - then) for then, now in pairwise(of_all_days)]
    drop = max(settings.max_auc_drop, USUAL_CHANGES * median(changes or [0.0]))
    usual, highest = _aucs(before), next_day.auc_high if next_day is not None else None
    # after the first day there is no usual AUC yet
    lowest = median(usual) - drop if usual else 0.5
    if next_day is None or highest is None or highest >= lowest:
        return None
    beside = (
        f"{median(usual):.4f} on the days before: lower by more than {drop:.4f}, the larger of days.max_auc_drop and "
        f"{USUAL_CHANGES} times the usual change from day to day"
        if usual
        else "worse than chance"
    )
    return f"yesterday's model has an AUC of {next_day.auc:.4f} on it, {beside}"


def _one_class(rows: int, positives: int, before: Sequence[DayRecord]) -> str | None:
    """The reason why a day with labels of one class is unlikely, judged by the days ``before``; None if it may be chance."""
    if 0 < positives < rows:
        return None
    share = sum(record.positives for record in before) / max(sum(record.rows for record in before), 1)
    probability = share**rows if positives else (1 - share) ** rows
    if before and probability > CHANCE:
        return None
    usual = f", {percent(share)} on the days before" * bool(before)
    return f"{'none' if positives == 0 else 'each'} of its {rows:,} rows is positive{usual}: its labels may be missing"


def _aucs(days: Sequence[DayRecord]) -> list[float]:
    return [day.next_day.auc for day in days if day.next_day is not None and day.next_day.auc is not None]


def reason_judged(judgement: Judgement | None) -> str | None:
    """The reason why a day is held back if its new model has learnt nothing, the opposite, or too much; None if it has learnt."""
    if judgement is None or not judgement.is_bad:
        return None
    cause = f" ({judgement.advice[0]})" if judgement.causes else ""
    return f"its model is {judgement.says}{cause}"


def reason_after(holdout: Holdout) -> str | None:
    """The reason why a day is held back after training: its model is worse than the previous one, beyond chance. None if not."""
    if holdout.high is None or holdout.difference is None or holdout.high >= 0:
        return None
    return (
        f"its model is worse than the one before on the rows held back: AUC {holdout.auc:.4f} after {holdout.before:.4f}, "
        f"a difference of {holdout.difference:+.4f} (95% interval {holdout.low:+.4f} to {holdout.high:+.4f})"
    )
