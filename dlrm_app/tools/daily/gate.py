"""The gate: a table of rules that hold a day back.

Each rule measures one number and compares it with its limit, a key of ``gate``. Before training, a day is compared with
the days published before it. After training, the new model is compared with yesterday's on the held-out rows. Shuffled
labels are found before training only: the labels of the held-out rows are shuffled, too, and no model is better there.

A change is also compared with the *usual* change: the spread of earlier days, as the median of their distances from
their median, which a few odd days do not move. Of shares of clicks and of missing values, of hours and of metrics, what
chance may explain with so few rows is left out.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from dlrm_app.config.days import GateConfig
from dlrm_app.evaluation.judgement import MOST_NE, judge
from dlrm_app.evaluation.measurements import Measurements
from dlrm_app.runs.checkpoint.evaluation import UNDECIDED, Judgement
from dlrm_app.table import Column, Columns, Rows
from dlrm_app.text import percent, short
from dlrm_app.tools.daily.record import Z_95, DayRecord, Scores, Verdict

USUAL_CHANGES = 4
"""A change of up to this many usual ones is not a sign of damage: tastes drift, and some days are harder."""
MOST_ALLOWED = 2
"""A change above this many limits holds a day back, however much earlier days differ."""
_ENOUGH = 4
"""The least number of days with a usual spread. The first days differ because the model still learns."""
_Z_HOURS = 4
"""Standard errors that chance may take from an hour's rows: 24 hours are judged, and nights have few rows."""
CHANCE = 0.05
"""A day with rows of one class is held back if this is less likely than CHANCE: clicks may be rare, and days small."""
_DEVIATIONS = 1.4826
"""A normal distribution's standard deviation, divided by its median absolute deviation."""
_OF = " of "
"""Between a rule and the other label that it judges."""
_ROUNDING = 1e-9
"""Equal AUCs may differ by less than this."""
Rule = Callable[["Days"], Verdict | None]


@dataclass(frozen=True)
class Days:
    """A day, and those ``published`` before it, in order, that it is compared with."""

    day: DayRecord
    published: Sequence[DayRecord]
    gate: GateConfig
    ids: Collection[str] = ()
    """The sparse columns."""

    @property
    def before(self) -> Sequence[DayRecord]:
        """The last days of the window."""
        return self.published[-self.gate.window :]


@dataclass(frozen=True)
class Usual:
    """The median of some values, and their usual distance from it."""

    level: float
    spread: float

    def allowed(self, limit: float) -> float:
        """The largest distance from the level that does not hold a day back."""
        return min(max(limit, USUAL_CHANGES * self.spread), MOST_ALLOWED * limit)


def usual(values: Iterable[float]) -> Usual | None:
    """Median and spread of ``values``; None without values. Fewer than _ENOUGH have the spread 0."""
    known = list(values)
    if not known:
        return None
    level = median(known)
    spread = _DEVIATIONS * median(abs(value - level) for value in known)
    return Usual(level, spread if len(known) >= _ENOUGH else 0.0)


def converged(aucs: Sequence[float], drop: float) -> Sequence[float]:
    """The AUCs without those of the first days, on which the model had not converged."""
    for first in range(len(aucs)):
        if aucs[first] >= median(aucs[first:]) - drop:
            return aucs[first:]
    return aucs


def judge_before(days: Days) -> list[Verdict]:
    """The verdicts of all rules that need no training."""
    rules = (_rows, _labels, _clicks, _missing, _unseen, _shift, _known, _hours, _auc, _ne, _calibration)
    return [*_verdicts(rules, days), *_of_labels((_labels, _clicks, _auc, _ne, _calibration), days)]


def judge_after(days: Days) -> list[Verdict]:
    """The verdicts of the rules on the new model, by the held-out rows."""
    of_scores = (_new_auc, _new_logloss, _new_calibration)
    return [*_verdicts((_learnt, *of_scores), days), *_of_labels(of_scores, days)]


COMPARED = ("new auc", "new log loss")
"""Rules that ``days.accept`` does not overrule: they show that the new model is worse than yesterday's."""


def _verdicts(rules: Sequence[Rule], days: Days) -> list[Verdict]:
    return [verdict for rule in rules if (verdict := rule(days)) is not None]


def _of_labels(rules: Sequence[Rule], days: Days) -> list[Verdict]:
    """The verdicts of ``rules`` for each other label that the day has."""
    found = []
    for name, label in days.day.labels.items():
        if not label.rows:  # the share of rows without it is judged by the rule missing
            continue
        before = [record.of_label(name) for record in days.published if name in record.labels]
        for verdict in _verdicts(rules, replace(days, day=days.day.of_label(name), published=before)):
            rule, says = f"{verdict.rule}{_OF}{name}", f"{name}: {verdict.says}"
            found.append(replace(verdict, rule=rule, says=says))
    return found


def reason(verdicts: Iterable[Verdict], *, is_accepted: bool = False) -> str | None:
    """The reasons why the day is held back, in one line; None if it is not.

    ``is_accepted``: the user accepts the day, which overrules all rules but COMPARED.
    """
    held = [
        each
        for each in verdicts
        if each.holds and (not is_accepted or each.rule.partition(_OF)[0] in COMPARED)
    ]
    return "; ".join(f"{each.says} ({each.cure})" if each.cure else each.says for each in held) or None


def rules_rows(verdicts: Sequence[Verdict]) -> tuple[Columns, Rows]:
    """A table with a line for each rule."""
    rows: Rows = [
        [each.rule, short(each.value), short(each.limit), "held" if each.holds else "passed", each.says]
        for each in verdicts
    ]
    words = [Column(title, is_words=True) for title in ("rule", "verdict", "")]
    return [words[0], "measured", "limit", *words[1:]], rows


def _limit(key: str, value: float) -> str:
    return f"gate.{key}={value:g}"


def _rows(days: Days) -> Verdict | None:
    level = usual(float(record.rows) for record in days.before)
    if level is None:
        return None
    share, limit = days.day.rows / level.level, days.gate.min_rows
    says = f"its {days.day.rows:,} rows are {percent(share)} of the {level.level:,.0f} of the days before"
    return Verdict(
        "rows",
        share,
        limit,
        share < limit,
        says,
        f"less than {_limit('min_rows', limit)}: is the log complete?",
    )


def _labels(days: Days) -> Verdict | None:
    """Holds back a day with labels of one class, if that is unlikely by the days before."""
    rows, positives = days.day.rows, days.day.positives
    if 0 < positives < rows:
        return None
    share = sum(record.positives for record in days.before) / max(sum(each.rows for each in days.before), 1)
    probability = share**rows if positives else (1 - share) ** rows
    known = f", {percent(share)} on the days before" * bool(days.before)
    says = f"{'none' if positives == 0 else 'each'} of its {rows:,} rows is positive{known}"
    holds = not (days.before and probability > CHANCE)
    chance = probability if days.before else None
    return Verdict("labels", chance, CHANCE, holds, says, "its labels may be missing")


def _clicks(days: Days) -> Verdict | None:
    day = days.day
    shares = [record.positives / record.rows for record in days.before if 0 < record.positives < record.rows]
    level = usual(math.log(share) for share in shares)
    if level is None or not 0 < day.positives < day.rows:
        return None
    share = day.positives / day.rows
    change = abs(math.log(share) - level.level)
    chance = Z_95 * math.sqrt((1 - share) / day.positives)
    limit = level.allowed(math.log(days.gate.max_click_change))
    says = f"{percent(share)} of its rows are positive, {percent(math.exp(level.level))} on the days before"
    rule = _limit("max_click_change", days.gate.max_click_change)
    cure = f"a factor above {rule} and the usual change: are clicks lost, or counted twice?"
    return Verdict("clicks", math.exp(change), math.exp(limit), change - chance > limit, says, cure)


def _worst(rows: Iterable[tuple[float, float, bool, str]]) -> tuple[float, float, bool, str] | None:
    """The (value, limit, is held, words) that is furthest above its limit."""
    return max(rows, key=lambda row: (row[2], row[0] / max(row[1], 1e-9)), default=None)


def _missing(days: Days) -> Verdict | None:
    def each(name: str, share: float) -> tuple[float, float, bool, str] | None:
        level = usual(record.missing[name] for record in days.before if name in record.missing)
        if level is None:
            return None
        change, limit = abs(share - level.level), level.allowed(days.gate.max_missing_change)
        chance = Z_95 * math.sqrt(0.25 / max(days.day.rows, 1))
        words = f"{percent(share)} of {name} is missing, {percent(level.level)} on the days before"
        return change, limit, change - chance > limit, words

    worst = _worst(row for name, share in days.day.missing.items() if (row := each(name, share)))
    cure = f"a change above {_limit('max_missing_change', days.gate.max_missing_change)}: is a column lost or renamed?"
    return worst and Verdict("missing", *worst, cure)


def _unseen(days: Days) -> Verdict | None:
    known = [record for record in days.before if record.unseen]
    if not known:
        return None

    def each(name: str, share: float) -> tuple[float, float, bool, str] | None:
        level = usual(record.unseen[name] for record in known if name in record.unseen)
        if level is None:
            return None
        rise, limit = share - level.level, level.allowed(days.gate.max_unseen_rise)
        words = (
            f"{percent(share)} of the lookups in {name} are of values never seen, "
            f"{percent(level.level)} on the days before"
        )
        return rise, limit, rise > limit, words

    worst = _worst(row for name, share in days.day.unseen.items() if (row := each(name, share)))
    rule = _limit("max_unseen_rise", days.gate.max_unseen_rise)
    cure = f"a rise above {rule} and the usual change: are ids written in another way?"
    return worst and Verdict("unseen", *worst, cure)


def _shift(days: Days) -> Verdict | None:
    def each(name: str, shift: float) -> tuple[float, float, bool, str]:
        limit = days.gate.max_id_shift if name in days.ids else days.gate.max_shift
        level = usual(record.shift[name] for record in days.before if name in record.shift)
        most = limit if level is None else level.level + level.allowed(limit)
        words = (
            f"the values of {name} differ from those of the most similar day before by a population stability "
            f"index of {short(shift)}"
        )
        return shift, most, shift > most, words

    worst = _worst(each(name, shift) for name, shift in days.day.shift.items())
    limits = f"{_limit('max_shift', days.gate.max_shift)} ({_limit('max_id_shift', days.gate.max_id_shift)} for ids)"
    cure = f"above {limits} and the usual one: has a unit or a source changed?"
    return worst and Verdict("shift", *worst, cure)


def _known(days: Days) -> Verdict | None:
    share = days.day.known_rows
    if share is None or not days.before:
        return None
    level = usual(record.known_rows for record in days.before if record.known_rows is not None) or Usual(
        0.0, 0.0
    )
    limit = level.level + level.allowed(days.gate.max_known_rows)
    says = (
        f"{percent(share)} of its rows are copies of its own or of earlier days' rows, "
        f"{percent(level.level)} on the days before"
    )
    rule = _limit("max_known_rows", days.gate.max_known_rows)
    cure = f"above {rule} more than usual: was a day or an hour delivered again?"
    return Verdict("known rows", share, limit, share > limit, says, cure)


def _hours(days: Days) -> Verdict | None:
    with_hours = [record.hours for record in days.before if record.hours]
    if not with_hours:
        return None
    limit = days.gate.min_hour_rows

    def each(hour: str) -> tuple[float, float, bool, str]:
        rows, files = days.day.hours.get(hour, [0, 0])
        rows_before, files_before = (
            median(hours.get(hour, [0, 0])[part] for hours in with_hours) for part in (0, 1)
        )
        share, chance = rows / max(rows_before, 1), _Z_HOURS * math.sqrt(rows + 1) / max(rows_before, 1)
        words = (
            f"hour {hour} has {rows:,} rows in {files:,} files, "
            f"{rows_before:,.0f} in {files_before:g} on the days before"
        )
        return share, limit, share + chance < limit, words

    all_hours = sorted(set().union(*with_hours))
    # a held hour first, then the one with the lowest share
    worst = min((each(hour) for hour in all_hours), key=lambda row: (not row[2], row[0]), default=None)
    cure = f"less than {_limit('min_hour_rows', limit)} of the rows: is an hour missing?"
    return worst and Verdict("hours", *worst, cure)


def _auc(days: Days) -> Verdict | None:
    now, gate = days.day.next_day, days.gate
    if now is None or now.auc is None or now.auc_high is None:
        return None
    aucs = [
        record.next_day.auc
        for record in days.published
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
    changes = [abs(b - a) for a, b in pairwise(same)] if len(same) >= _ENOUGH else [0.0]
    level = median(same[-gate.window :])
    drop = Usual(level, median(changes)).allowed(gate.max_auc_drop)
    says = f"yesterday's model has an AUC of {now.auc:.4f} on it, {level:.4f} on the days before"
    cure = (
        f"lower by more than {drop:.4f}, the larger of gate.max_auc_drop and {USUAL_CHANGES} times the usual change "
        f"from day to day, at most {MOST_ALLOWED} times gate.max_auc_drop: "
        "are labels or columns in disorder?"
    )
    return Verdict("auc", now.auc, level - drop, now.auc_high < level - drop, says, cure)


def _scored(days: Days) -> list[Scores]:
    return [record.next_day for record in days.before if record.next_day is not None]


def _ne(days: Days) -> Verdict | None:
    now = days.day.next_day
    level = usual(scores.ne for scores in _scored(days) if scores.ne is not None)
    if now is None or now.ne is None or level is None:
        return None
    lowest = now.ne if not now.logloss or now.logloss_low is None else now.ne * now.logloss_low / now.logloss
    limit = level.level + level.allowed(days.gate.max_ne_rise)
    says = (
        f"yesterday's model has a log loss of {now.ne:.4f} of the base rate's on it, "
        f"{level.level:.4f} on the days before"
    )
    cure = f"a rise above {_limit('max_ne_rise', days.gate.max_ne_rise)} and the usual change"
    return Verdict("log loss", now.ne, limit, lowest > limit, says, cure)


def _distance(scores: Scores, level: float) -> float:
    """The distance of the logarithm of the calibration from ``level``, beyond chance."""
    low, high = scores.calibration_low or 0.0, scores.calibration_high or math.inf
    if low <= math.exp(level) <= high or scores.calibration_low is None or scores.calibration_high is None:
        return 0.0
    return min(abs(math.log(low) - level), abs(math.log(high) - level)) if low > 0 else math.inf


def _calibration(days: Days) -> Verdict | None:
    now = days.day.next_day
    if now is None or not now.calibration:
        return None
    level = usual(math.log(each.calibration) for each in _scored(days) if each.calibration) or Usual(0.0, 0.0)
    limit = level.allowed(math.log(days.gate.max_calibration_change))
    says = (
        f"yesterday's model predicts {now.calibration:.3f} times its clicks, "
        f"{math.exp(level.level):.3f} on the days before"
    )
    rule = _limit("max_calibration_change", days.gate.max_calibration_change)
    cure = f"a factor above {rule} and the usual change: are clicks lost, or a unit changed?"
    value = math.exp(abs(math.log(now.calibration) - level.level))
    return Verdict("calibration", value, math.exp(limit), _distance(now, level.level) > limit, says, cure)


def _learnt(days: Days) -> Verdict | None:
    judgement = days.day.judgement
    if judgement is None:
        return None
    cure = judgement.advice[0] if judgement.causes else ""
    says, holds = f"its model: {judgement.says}", judgement.is_bad
    # the held-out rows may be too few to tell a model of noise, all rows of the day may not
    if judgement.verdict == UNDECIDED and (before := _judged_before(days.day)) and before.is_bad:
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
    counts, effective = (
        (day.rows, day.positives),
        (now.effective[0], now.effective[1]) if now.effective else None,
    )
    found = Measurements(day.day, *counts, now.auc, now.ne, error, now.calibration, effective=effective)
    return judge(found, None)


def _new_auc(days: Days) -> Verdict | None:
    holdout = days.day.holdout
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


def _new_logloss(days: Days) -> Verdict | None:
    holdout = days.day.holdout
    new, old = (holdout.scores, holdout.scores_before) if holdout else (None, None)
    if new is None or old is None or not new.logloss or not old.logloss:
        return None
    if new.logloss_low is None or old.logloss_high is None:
        return None
    rise, limit = new.logloss / old.logloss - 1, days.gate.max_logloss_rise
    says = f"its model has a log loss of {new.logloss:.4f} on the rows held back, the one before {old.logloss:.4f}"
    cure = f"worse beyond chance, by more than {_limit('max_logloss_rise', limit)}"
    return Verdict("new log loss", rise, limit, new.logloss_low / old.logloss_high - 1 > limit, says, cure)


def _new_calibration(days: Days) -> Verdict | None:
    new = days.day.holdout.scores if days.day.holdout else None
    if new is None or not new.calibration:
        return None
    limit = days.gate.max_calibration
    says = f"its model predicts {new.calibration:.3f} times the clicks of the rows held back"
    value, is_off = math.exp(abs(math.log(new.calibration))), _distance(new, 0.0) > math.log(limit)
    cure = f"off by a factor above {_limit('max_calibration', limit)}: lower the learning rate, or train on more rows"
    return Verdict("new calibration", value, limit, is_off, says, cure)
