"""The gate: rules that hold a day back. Before its rows are learnt: how many there are, whether they are of both classes, how new
their values, how well yesterday's model knows them. After: is the new model worse than yesterday's on the rows held back?

A day whose labels are shuffled has them shuffled in the rows held back too, where no model is better than another: only the
first rules find it.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from dlrm_app.config.days import DaysSettings
from dlrm_app.days.record import DayRecord, Holdout, Scores
from dlrm_app.text import percent

USUAL_CHANGES = 4
"""How many times the usual change of the AUC from day to day is no sign of damage: tastes drift, and some days are harder."""

CHANCE = 0.05
"""Rows of one class are no sign of damage where so many days or more would have them: clicks may be rare, and days small."""


def reason_before(
    rows: int,
    positives: int,
    unseen: Mapping[str, float],
    next_day: Scores | None,
    before: Sequence[DayRecord],
    settings: DaysSettings,
) -> str | None:
    """Why a day is held back unlearnt; ``before``: the days published before it, the last at the end."""
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
    # after the first day nothing is usual yet
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
    """Why a day without clicks, or with nothing else, is no chance of the days ``before``: its labels are missing."""
    share = sum(record.positives for record in before) / max(sum(record.rows for record in before), 1)
    likely = {0: (1 - share) ** rows, rows: share**rows}.get(positives, 1.0) if before else 0.0
    if 0 < positives < rows or likely > CHANCE:
        return None
    usual = f", {percent(share)} on the days before" * bool(before)
    return f"{'none' if positives == 0 else 'each'} of its {rows:,} rows is positive{usual}: its labels may be missing"


def _aucs(days: Sequence[DayRecord]) -> list[float]:
    return [day.next_day.auc for day in days if day.next_day is not None and day.next_day.auc is not None]


def reason_after(holdout: Holdout) -> str | None:
    """Why a day is held back once it is learnt: its model is worse than the one before, beyond chance."""
    if holdout.high is None or holdout.difference is None or holdout.high >= 0:
        return None
    return (
        f"its model is worse than the one before on the rows held back: AUC {holdout.auc:.4f} after {holdout.before:.4f}, "
        f"a difference of {holdout.difference:+.4f} (95% interval {holdout.low:+.4f} to {holdout.high:+.4f})"
    )
