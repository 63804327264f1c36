"""Roles and kinds of the columns of a sampled log, by their names and values."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dlrm_app.encoding.repeated_columns import repeated_column
from dlrm_app.errors import Problem
from dlrm_app.logs.parquet_columns import is_list
from dlrm_app.logs.read_spec import is_column_name
from dlrm_app.text import percent
from dlrm_app.tools.checking.description import Proposed
from dlrm_app.tools.checking.features import is_outcome, propose_feature
from dlrm_app.tools.checking.leaks import KnownLabel, conditions, known_label, leak, pair_leak
from dlrm_app.tools.checking.lists import ListForm, ListRows, padding_of, rows_of
from dlrm_app.tools.checking.sample import Sample, SampledColumn, words_of
from dlrm_app.tools.checking.text_form import FLOAT
from dlrm_app.tools.checking.times import two_units

_LABEL, _LABEL_WORDS = r"[01](\.0*)?|true|false", r"yes|no|[ynft]"
"""Labels as they are read, and words that also mean one or the other."""
_PAIRS = ({-1.0, 1.0}, {1.0, 2.0})
"""Pairs of numbers that other programs write for 0 and 1."""
_SHOWN = re.compile(
    r"impressions?|impr?s?|shown|shows?|displays?|displayed|views?|exposures?|exposed|sent|sends|delivered|served|pv|trials"
)
_HAPPENED = re.compile(
    r"clicks?|clicked|clks?|taps?|opens?|opened|conversions?|conv|converted|orders?|purchases?|installs?|likes?|buys?"
)
"""Words in the names of two columns that count what was shown and what happened."""


def propose(sample: Sample) -> list[Proposed]:
    """Proposes a role and a kind for each column."""
    candidates = [column for column in sample.columns if _may_be_label(column)]
    labels = sorted(candidates, key=lambda column: not column.fits(_LABEL))
    labels = [column for column in labels if is_outcome(column.name)] or labels[:1]
    is_sure = len(labels) == 1 and is_outcome(labels[0].name)
    taken = f"{sample.marks.get('delimiter', '')}{sample.marks.get('quote') or ''}"
    found = [
        _label(column, labels, is_sure) if column in labels else propose_feature(column, sample, taken)
        for column in sample.columns
    ]
    lists = {
        each.name: rows_of(column, ListForm(each.separator, each.brackets, each.weights))
        for each, column in zip(found, sample.columns, strict=True)
        if each.role == "sparse" and each.separator is not None
    }
    found = [
        each._replace(padding=padding_of(lists[each.name])) if each.name in lists else each for each in found
    ]
    found = _with_sources(found, sample.columns, lists)
    known = [known_label(column) for column in labels if column.fits(_LABEL)]
    return [
        _unless_leaking(each, column, lists, _others(each, found, sample.columns), known)
        for each, column in zip(found, sample.columns, strict=True)
    ]


def given_labels(sample: Sample, proposed: Sequence[Proposed]) -> dict[str, str]:
    """Label → the label without which no row of the sample has it."""
    names = {each.name for each in proposed if each.role == "label"}
    return conditions([known_label(column) for column in sample.columns if column.name in names])


def unusable(sample: Sample) -> list[Problem]:
    """Problems of columns for which no proposal could be right."""
    mixed = [problem for column in sample.columns if (problem := two_units(column)) is not None]
    return [*_summed_up(sample.columns), *mixed]


def _summed_up(columns: Sequence[SampledColumn]) -> list[Problem]:
    """A problem of a log whose rows count impressions and clicks, instead of being one impression each."""
    counts = [column for column in columns if not is_list(column.stored) and column.fits(r"\d{1,9}(\.0*)?")]
    if any(is_outcome(column.name) and column.fits(_LABEL) for column in columns):
        return []
    for shown in (column for column in counts if _is_named(column, _SHOWN)):
        for happened in (column for column in counts if _is_named(column, _HAPPENED) and column is not shown):
            most, some = _numbers(shown), _numbers(happened)
            if most.max() > 1 and (some <= most).all():
                a, b = shown.name, happened.name
                rule = f"are counts of what was shown and what happened: a row is no impression, and {b} no label"
                cure = (
                    f"write two weighted rows for each, in pandas: pd.concat([df.assign(click=1, weight=df['{b}']), "
                    f"df.assign(click=0, weight=df['{a}'] - df['{b}'])]).query('weight > 0')"
                    f".drop(columns=['{a}', '{b}']), with role: weight for weight"
                )
                return [Problem(f"{a} and {b}", rule, cure)]
    return []


def _is_named(column: SampledColumn, words: re.Pattern[str]) -> bool:
    named = [
        word
        for word in words_of(column.name)
        if word not in ("num", "n", "count", "counts", "cnt", "total", "sum")
    ]
    return len(named) > 0 and all(map(words.fullmatch, named))


def _numbers(column: SampledColumn) -> NDArray[np.float64]:
    """The numbers of all rows, 0 where they are missing."""
    codes, values = column.codes()
    numbers = np.array([*(float(value) if value in column.counts else 0.0 for value in values), 0.0])
    return numbers[codes]


def _with_sources(
    found: Sequence[Proposed], columns: Sequence[SampledColumn], lists: Mapping[str, ListRows]
) -> list[Proposed]:
    """Adds a note to lists that have the values of another column: both should share one vocabulary."""
    numbers: dict[str, int] = {}

    def keys(counts: Mapping[str, int]) -> NDArray[np.uint64]:
        values = np.array([numbers.setdefault(text, len(numbers)) for text in counts], np.uint64)
        return np.repeat(values, [*counts.values()])

    with_notes = []
    for each in found:
        if each.name in lists:
            items = lists[each.name].counts()
            items.pop(each.padding or "", None)
            others = {name: keys(seen.counts) for name, seen in _others(each, found, columns).items()}
            if source := repeated_column(keys(items), others):
                note = f"its values are those of {source}: encoding=auto, or encoding.shared=[[{source},{each.name}]]"
                each = each._replace(note=note)
        with_notes.append(each)
    return with_notes


def _others(
    proposed: Proposed, found: Sequence[Proposed], columns: Sequence[SampledColumn]
) -> dict[str, SampledColumn]:
    """The columns of single values of the same kind as the list ``proposed``; none if it is not a list."""
    return {
        other.name: column
        for other, column in zip(found, columns, strict=True)
        if proposed.separator is not None
        and (other.role, other.kind, other.separator) == (proposed.role, proposed.kind, None)
    }


def _may_be_label(column: SampledColumn) -> bool:
    fits = column.fits(_LABEL) or column.fits(_LABEL_WORDS) or _is_pair(column)
    if is_list(column.stored) or not is_column_name(column.name) or not fits:
        return False
    return is_outcome(column.name) or (len(column.counts) > 1 and not column.missing)


def _is_pair(column: SampledColumn) -> bool:
    return len(column.counts) == 2 and column.fits(FLOAT) and {*map(float, column.counts)} in _PAIRS


def _label(column: SampledColumn, labels: Sequence[SampledColumn], is_sure: bool) -> Proposed:
    if not column.fits(_LABEL):
        words = " and ".join(sorted(column.counts))
        note = f"guess: the label, if its {words} are written as 0 and 1: then {{name: {column.name}, role: label}}"
        return Proposed(column.name, "ignore", note=note)
    note = "" if is_sure else "guess: it holds only 0 and 1"
    if column.missing:
        what = "are rejected" if column is labels[0] else "teach nothing of it"
        note = f"{percent(column.missing)} of the rows have none, and {what}"
    return Proposed(column.name, "label", note=note)


def _unless_leaking(
    proposed: Proposed,
    column: SampledColumn,
    lists: Mapping[str, ListRows],
    others: Mapping[str, SampledColumn],
    labels: Sequence[KnownLabel],
) -> Proposed:
    """``proposed``, or to ignore a feature that predicts a label too well: it may be known only afterwards.

    ``others``: the columns whose values a list may hold.
    """
    if proposed.role in ("ignore", "label"):
        return proposed
    rows = lists.get(proposed.name)
    if rows is not None and (pair := pair_leak(rows, others, labels)):
        told = f"whether it holds {pair[0]}, or ends with it, tells {_which(pair[1], labels)} with AUC {pair[2]:.2f}"
    elif found := leak(column, rows, labels):
        told = f"alone it tells {_which(found[0], labels)} with AUC {found[1]:.2f}"
    else:
        return proposed
    return Proposed(proposed.name, "ignore", note=f"guess: {told}, so it may be known only afterwards")


def _which(label: str, labels: Sequence[KnownLabel]) -> str:
    return "the label" if len(labels) == 1 else label
