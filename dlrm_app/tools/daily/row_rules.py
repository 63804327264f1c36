"""Rules on the rows of a day, each against the days before."""

import math
from collections.abc import Iterable
from statistics import median

from dlrm_app.encoding.row_samples import Z_95
from dlrm_app.text import percent, short
from dlrm_app.tools.daily.record import EFFECTIVE, Verdict
from dlrm_app.tools.daily.usual import ComparedDay, Usual, limit_text, usual

_Z_MANY = 4
"""Standard errors that chance may explain of an hour's rows, as 24 hours are judged, and nights have few rows; and of
weights, which may have heavy tails."""


_LEAST = 1e-30
"""Stands for a mean weight of 0 in a factor."""


CHANCE = 0.05
"""A day with rows of one class is held back if this is less likely than CHANCE: clicks may be rare, and days small."""


def check_rows(compared: ComparedDay) -> Verdict | None:
    """Holds back a day with too small a share of the usual number of rows."""
    level = usual(float(record.rows) for record in compared.before)
    if level is None:
        return None
    share, limit = compared.day.rows / level.level, compared.gate.min_rows
    says = f"its {compared.day.rows:,} rows are {percent(share)} of the {level.level:,.0f} of the days before"
    return Verdict(
        "rows",
        share,
        limit,
        share < limit,
        says,
        f"less than {limit_text('min_rows', limit)}: is the log complete?",
    )


def check_labels(compared: ComparedDay) -> Verdict | None:
    """Holds back a day with labels of one class, if that is unlikely by the days before."""
    rows, positives = compared.day.rows, compared.day.positives
    if 0 < positives < rows:
        return None
    share = sum(record.positives for record in compared.before) / max(
        sum(each.rows for each in compared.before), 1
    )
    probability = share**rows if positives else (1 - share) ** rows
    usual_share = f", {percent(share)} on the days before" * bool(compared.before)
    says = f"{'none' if positives == 0 else 'each'} of its {rows:,} rows is positive{usual_share}"
    holds = not (compared.before and probability > CHANCE)
    chance = probability if compared.before else None
    return Verdict("labels", chance, CHANCE, holds, says, "its labels may be missing")


def check_clicks(compared: ComparedDay) -> Verdict | None:
    """Holds back a day whose share of positives is off by a factor, beyond chance and the usual change."""
    day = compared.day
    shares = [
        record.positives / record.rows for record in compared.before if 0 < record.positives < record.rows
    ]
    level = usual(math.log(share) for share in shares)
    if level is None or not 0 < day.positives < day.rows:
        return None
    share = day.positives / day.rows
    change = abs(math.log(share) - level.level)
    chance = Z_95 * math.sqrt((1 - share) / day.positives)
    limit = level.allowed(math.log(compared.gate.max_click_change))
    says = f"{percent(share)} of its rows are positive, {percent(math.exp(level.level))} on the days before"
    rule = limit_text("max_click_change", compared.gate.max_click_change)
    cure = f"a factor above {rule} and the usual change: are clicks lost, or counted twice?"
    return Verdict("clicks", math.exp(change), math.exp(limit), change - chance > limit, says, cure)


def check_weights(compared: ComparedDay) -> Verdict | None:
    """Judges the mean weight, of the positives alone too, and the share of effective rows, if it falls."""
    gate = compared.gate

    def each(of: str, what: str, value: float, error: float) -> tuple[float, float, bool, str] | None:
        """``error``: the standard error of the logarithm of ``value``."""
        before = [record.weights[of].measured[what] for record in compared.before if of in record.weights]
        level = usual(_log(value) for value, _ in before)
        if level is None:
            return None
        change = _log(value) - level.level
        limit = level.allowed(math.log(gate.max_weight_change))
        if what == EFFECTIVE:
            change, limit = max(-change, 0.0), level.allowed(-_log(gate.min_effective_rows))
        chance = _Z_MANY * math.hypot(error, median(error for _, error in before))
        words = f"the {what} of its {of} is {short(value)}, {short(math.exp(level.level))} on the days before"
        return math.exp(abs(change)), math.exp(limit), abs(change) - chance > limit, words

    worst = _worst(
        row
        for of, weights in compared.day.weights.items()
        for what, found in weights.measured.items()
        if (row := each(of, what, *found))
    )
    cure = (
        f"a factor above {limit_text('max_weight_change', gate.max_weight_change)}, or below "
        f"{limit_text('min_effective_rows', gate.min_effective_rows)}: has the unit of the weights changed?"
    )
    return worst and Verdict("weights", *worst, cure)


def _log(value: float) -> float:
    return math.log(max(value, _LEAST))


def _worst(rows: Iterable[tuple[float, float, bool, str]]) -> tuple[float, float, bool, str] | None:
    """The (value, limit, is held, words) that is furthest above its limit."""
    return max(rows, key=lambda row: (row[2], row[0] / max(row[1], 1e-9)), default=None)


def check_missing(compared: ComparedDay) -> Verdict | None:
    """Holds back a day in which a column is missing much more, or less, often than usual."""

    def each(name: str, share: float) -> tuple[float, float, bool, str] | None:
        level = usual(record.missing[name] for record in compared.before if name in record.missing)
        if level is None:
            return None
        change, limit = abs(share - level.level), level.allowed(compared.gate.max_missing_change)
        chance = Z_95 * math.sqrt(0.25 / max(compared.day.asked.get(name, compared.day.rows), 1))
        words = f"{percent(share)} of {name} is missing, {percent(level.level)} on the days before"
        return change, limit, change - chance > limit, words

    worst = _worst(row for name, share in compared.day.missing.items() if (row := each(name, share)))
    cure = f"a change above {limit_text('max_missing_change', compared.gate.max_missing_change)}: is a column lost or renamed?"
    return worst and Verdict("missing", *worst, cure)


def check_unseen(compared: ComparedDay) -> Verdict | None:
    """Holds back a day in which a column has many more values that were never seen than usual."""
    with_unseen = [record for record in compared.before if record.unseen]
    if not with_unseen:
        return None

    def each(name: str, share: float) -> tuple[float, float, bool, str] | None:
        level = usual(record.unseen[name] for record in with_unseen if name in record.unseen)
        if level is None:
            return None
        rise, limit = share - level.level, level.allowed(compared.gate.max_unseen_rise)
        words = (
            f"{percent(share)} of the lookups in {name} are of values never seen, "
            f"{percent(level.level)} on the days before"
        )
        return rise, limit, rise > limit, words

    worst = _worst(row for name, share in compared.day.unseen.items() if (row := each(name, share)))
    rule = limit_text("max_unseen_rise", compared.gate.max_unseen_rise)
    cure = f"a rise above {rule} and the usual change: are ids written in another way?"
    return worst and Verdict("unseen", *worst, cure)


def check_shift(compared: ComparedDay) -> Verdict | None:
    """Holds back a day whose values of a column are distributed unlike those of any recent day."""

    def each(name: str, shift: float) -> tuple[float, float, bool, str]:
        limit = compared.gate.max_id_shift if name in compared.ids else compared.gate.max_shift
        level = usual(record.shift[name] for record in compared.before if name in record.shift)
        most = limit if level is None else level.level + level.allowed(limit)
        words = (
            f"the values of {name} differ from those of the most similar day before by a population stability "
            f"index of {short(shift)}"
        )
        return shift, most, shift > most, words

    worst = _worst(each(name, shift) for name, shift in compared.day.shift.items())
    limits = f"{limit_text('max_shift', compared.gate.max_shift)} ({limit_text('max_id_shift', compared.gate.max_id_shift)} for ids)"
    cure = f"above {limits} and the usual one: has a unit or a source changed?"
    return worst and Verdict("shift", *worst, cure)


def check_known_rows(compared: ComparedDay) -> Verdict | None:
    """Holds back a day with many more rows that it or an earlier day had already than usual."""
    share = compared.day.known_rows
    if share is None or not compared.before:
        return None
    level = usual(record.known_rows for record in compared.before if record.known_rows is not None) or Usual(
        0.0, 0.0
    )
    limit = level.level + level.allowed(compared.gate.max_known_rows)
    says = (
        f"{percent(share)} of its rows are copies of its own or of earlier days' rows, "
        f"{percent(level.level)} on the days before"
    )
    rule = limit_text("max_known_rows", compared.gate.max_known_rows)
    cure = f"above {rule} more than usual: was a day or an hour delivered again?"
    return Verdict("known rows", share, limit, share > limit, says, cure)


def check_hours(compared: ComparedDay) -> Verdict | None:
    """Holds back a day that has too few of the usual rows of an hour."""
    with_hours = [record.hours for record in compared.before if record.hours]
    if not with_hours:
        return None
    limit = compared.gate.min_hour_rows

    def each(hour: str) -> tuple[float, float, bool, str]:
        rows, files = compared.day.hours.get(hour, [0, 0])
        rows_before, files_before = (
            median(hours.get(hour, [0, 0])[part] for hours in with_hours) for part in (0, 1)
        )
        share, chance = rows / max(rows_before, 1), _Z_MANY * math.sqrt(rows + 1) / max(rows_before, 1)
        words = (
            f"hour {hour} has {rows:,} rows in {files:,} files, "
            f"{rows_before:,.0f} in {files_before:g} on the days before"
        )
        return share, limit, share + chance < limit, words

    all_hours = sorted(set().union(*with_hours))
    # a held hour first, then the one with the lowest share
    worst = min((each(hour) for hour in all_hours), key=lambda row: (not row[2], row[0]), default=None)
    cure = f"less than {limit_text('min_hour_rows', limit)} of the rows: is an hour missing?"
    return worst and Verdict("hours", *worst, cure)
