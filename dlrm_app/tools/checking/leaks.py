"""Columns that tell a label alone, or a list with the column whose values it shares: known only afterwards."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.evaluation.column_auc import auc_of, auc_of_ids, auc_of_lists, auc_of_pair
from dlrm_app.tools.checking.lists import ListRows
from dlrm_app.tools.checking.sample import SampledColumn
from dlrm_app.tools.checking.text_form import FLOAT

_LEAK_AUC, _LEAK_ROWS, _LEAST = 0.9, 1000, 20
"""A feature with at least this AUC alone may be known only after the label; the least rows to measure it, and the least
rows of each class.
"""
_BY_CHANCE = 1e-3


class KnownLabel(NamedTuple):
    """A label of the sample: the numbers of the rows that have it, and which of these are positive."""

    name: str
    rows: NDArray[np.int64]
    positive: NDArray[np.bool_]

    @property
    def is_measured(self) -> bool:
        """True if there are rows enough of both classes."""
        count = int(self.positive.sum())
        return len(self.rows) >= _LEAK_ROWS and min(count, len(self.rows) - count) >= _LEAST


def known_label(column: SampledColumn) -> KnownLabel:
    """The label of ``column``, whose values are 0 and 1, or true and false."""
    codes, values = column.codes()
    is_positive = np.array([value.lower() == "true" or value[:1] == "1" for value in values], bool)
    rows = np.flatnonzero(codes >= 0)
    return KnownLabel(column.name, rows, is_positive[codes[rows]])


def leak(
    column: SampledColumn, lists: ListRows | None, labels: Sequence[KnownLabel]
) -> tuple[str, float] | None:
    """(the label that ``column`` tells best, its AUC), if that is too high. ``lists``: its lists, if it has some."""
    measure = _auc_of_column if lists is None else _auc_of_lists
    found = [(measure(column, lists, label), label.name) for label in labels if label.is_measured]
    auc, name = max(found, default=(0.0, ""))
    return (name, auc) if auc >= _LEAK_AUC else None


def _auc_of_column(column: SampledColumn, _: ListRows | None, label: KnownLabel) -> float:
    codes, values = column.codes()
    codes = codes[label.rows]
    is_known = codes >= 0
    aucs = [auc_of_ids(codes + 1, label.positive), auc_of(is_known.astype(np.float64), label.positive)]
    if column.fits(FLOAT) and 2 * is_known.sum() > len(codes):
        numbers = np.array([float(value) if value in column.counts else 0.0 for value in values])
        aucs.append(auc_of(numbers[codes[is_known]], label.positive[is_known]))
    return _best(aucs)


def _auc_of_lists(_: SampledColumn, lists: ListRows | None, label: KnownLabel) -> float:
    assert lists is not None, "a column of lists"
    chosen = _of_rows(lists, label.rows)
    return _best([auc_of_lists(chosen.codes + 1, chosen.offsets, label.positive)])


def pair_leak(
    lists: ListRows, others: Mapping[str, SampledColumn], labels: Sequence[KnownLabel]
) -> tuple[str, str, float] | None:
    """(another column, the label that a list and it tell together, their AUC), if that is too high."""
    numbers = {value: number for number, value in enumerate(lists.values)}
    found = [(0.0, "", "")]
    for label in labels:
        if not label.is_measured:
            continue
        chosen = _of_rows(lists, label.rows)
        for name, column in others.items():
            codes, values = column.codes()
            number_of = np.array([*(numbers.get(value, -1) for value in values), -1], np.int64)
            ids = number_of[codes[label.rows]]  # -1 is the last
            if (ids >= 0).any():
                auc = _best([auc_of_pair(ids, chosen.codes, chosen.offsets, label.positive)])
                found.append((auc, name, label.name))
    auc, column_name, label_name = max(found)
    return (column_name, label_name, auc) if auc >= _LEAK_AUC else None


def _of_rows(lists: ListRows, rows: NDArray[np.int64]) -> ListRows:
    lengths = np.diff(lists.offsets)
    is_chosen = np.zeros(len(lengths), bool)
    is_chosen[rows] = True
    codes = lists.codes[np.repeat(is_chosen, lengths)]
    return ListRows(codes, np.concatenate([[0], np.cumsum(lengths[rows])]), lists.values)


def _best(aucs: Sequence[float]) -> float:
    return max((max(auc, 1 - auc) for auc in aucs if auc == auc), default=0.0)


def conditions(labels: Sequence[KnownLabel]) -> dict[str, str]:
    """Label → the label without which no row has it, by more than chance: the one with fewest positives."""
    positives = {label.name: label.rows[label.positive] for label in labels}
    found = {}
    for label in labels:
        own = positives[label.name]
        fitting = []
        for other in labels:
            count, known = len(positives[other.name]), len(other.rows)
            is_rarer = other is not label and len(own) < count
            if (
                is_rarer
                and (count / known) ** len(own) < _BY_CHANCE
                and np.isin(own, positives[other.name]).all()
            ):
                fitting.append((count, other.name))
        if fitting:
            found[label.name] = min(fitting)[1]
    return found
