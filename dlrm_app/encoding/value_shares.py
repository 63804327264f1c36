"""Shares of missing and unseen values, lengths of lists and sizes of numbers: of scored rows beside what is usual.

A model that was trained on ``True`` scores ``true`` as an unseen value: without an error, and badly. So the rows of val
(or test, if there is no val) are counted when a dataset is made, and rows are compared with them wherever they are
scored. Other days differ too: only a change is reported that is larger than ``LIMIT`` by more than chance explains.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import DenseColumn, SparseColumn
from dlrm_app.dataset.splits import ValueCounts
from dlrm_app.dataset.vector_columns import VectorColumn
from dlrm_app.encoding.dense import is_target
from dlrm_app.encoding.encoder import Encoded
from dlrm_app.table import text_table
from dlrm_app.text import percent

LIMIT = 0.1
"""The largest difference of two shares that is not reported."""
LENGTH_LIMIT = 2.0
"""The largest ratio of two mean lengths of lists that is not reported."""
SIZE_LIMIT = 1.0
"""The largest difference of two mean sizes of numbers that is not reported, in standard deviations of the usual rows."""
_LEAST_ROWS, _LEAST_DEVIATION = 30, 50
"""The rows that a mean size needs, and the least standard deviation that it is measured by."""
_Z = 5.0
"""Standard errors beyond which a difference is not by chance. Many, because neighbouring rows are similar."""
WINDOW_ROWS, RECENT_ROWS = 1 << 17, 1 << 12
"""Rows of requests that a server compares together: many, and the newest ones."""
_CHANCE = 1e-5
"""Unseen values alone are reported if they would come about by chance with less than this probability."""


class ValueCounter:
    """Adds up the values of encoded rows with the columns ``dense``, ``sparse`` and ``vectors``."""

    def __init__(
        self,
        dense: Sequence[DenseColumn],
        sparse: Sequence[SparseColumn],
        vectors: Sequence[VectorColumn] = (),
    ) -> None:
        self._names = [c.name for c in dense] + [c.name for c in sparse] + [c.name for c in vectors]
        self._is_counted = [
            *(not is_target(column) for column in dense),
            *(True for _ in (*sparse, *vectors)),
        ]
        self._lists = [
            (len(dense) + number, column.name) for number, column in enumerate(sparse) if column.multi_hot
        ]
        self._numbers = [number for number in range(len(dense)) if self._is_counted[number]]
        self._places: list[int] = []
        self.sums = np.zeros((len(self._names), 7), np.int64)

    def add(self, encoded: Encoded) -> None:
        """Adds rows that were encoded with ``counts_unseen``."""
        sums = self.sums
        sums[:, 0] += len(encoded)
        sums[:, 1] += encoded.missing
        sums[:, 2] += encoded.unseen
        sums[:, 3] += len(encoded) - encoded.missing
        if self._numbers and len(encoded):
            self._add_sizes(encoded)
        for number, name in self._lists:
            offsets = encoded.bags(encoded.schema.get_field_index(name)).offsets
            lengths: NDArray[np.int64] = (offsets[1:] - offsets[:-1]).astype(np.int64)
            sums[number, 3] += lengths.sum() - len(encoded) + encoded.missing[number]
            sums[number, 4] += lengths @ lengths

    def _add_sizes(self, encoded: Encoded) -> None:
        if not self._places:
            self._places = [encoded.schema.get_field_index(self._names[number]) for number in self._numbers]
        sizes = sizes_of(np.stack([encoded.values(place) for place in self._places]))  # [numbers, rows]
        self.sums[self._numbers, 5] += sizes.sum(axis=1)
        self.sums[self._numbers, 6] += (sizes * sizes).sum(axis=1)

    def counts(self) -> dict[str, ValueCounts]:
        """Column → its counts; target columns have none of their own."""
        return self.counts_of(self.sums)

    def counts_of(self, sums: NDArray[np.int64]) -> dict[str, ValueCounts]:
        """Column → its counts, of ``sums`` [columns, 7] such as the counter's own."""
        rows = zip(self._names, self._is_counted, sums.tolist(), strict=True)
        return {name: ValueCounts(*each) for name, is_counted, each in rows if is_counted}


def sizes_of(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Sizes of encoded numbers: thousandths of sign(x) · log(1 + |x|), whose sums and those of their squares fit into
    integers, the same for any order of rows.
    """
    return np.rint(1000 * np.sign(values) * np.log1p(np.abs(values))).astype(np.int64)


def add_up(parts: Iterable[Mapping[str, ValueCounts]]) -> dict[str, ValueCounts]:
    """The counts of several parts of the same columns together."""
    total: dict[str, ValueCounts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total[name] + counts if name in total else counts
    return total


class Deviation(NamedTuple):
    """A share or a mean length of ``column`` that differs from the usual one; ``usual`` is None if that is unknown."""

    column: str
    what: str
    usual: float | None
    found: float

    @property
    def words(self) -> tuple[str, str, str, str]:
        """Column, what was measured, the usual value and the one that was found."""
        text = {LENGTH: _length, SIZE: _deviations}.get(self.what, percent)
        return self.column, self.what, text(self.usual), text(self.found)


UNSEEN = "values that training has not seen"
MISSING = "missing values"
LENGTH = "elements of a list, on average"
SIZE = "mean of the numbers, in deviations"


def _length(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _deviations(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}" if value else "0"


def deviations(usual: Mapping[str, ValueCounts], found: Mapping[str, ValueCounts]) -> list[Deviation]:
    """The differences between ``found`` and ``usual`` that exceed the limits and chance. A column of unseen values
    alone always differs, unless chance explains it.
    """
    differing = []
    for name, counts in found.items():
        before = usual.get(name, ValueCounts())
        if counts.values and counts.unseen == counts.values and _exceeds_chance(before, counts):
            differing.append(Deviation(name, UNSEEN, before.unseen_share, 1.0))
        elif _differ(before.unseen, before.values, counts.unseen, counts.values):
            differing.append(Deviation(name, UNSEEN, before.unseen_share, counts.unseen / counts.values))
        if _differ(before.missing, before.rows, counts.missing, counts.rows):
            differing.append(
                Deviation(name, MISSING, before.missing / before.rows, counts.missing / counts.rows)
            )
        if before.rows and counts.rows and _lengths_differ(before, counts):
            differing.append(Deviation(name, LENGTH, before.mean_length, counts.mean_length))
        if before.size_squares and counts.rows >= _LEAST_ROWS and (moved := _moved(before, counts)):
            differing.append(Deviation(name, SIZE, 0.0, moved))
    return differing


def _exceeds_chance(before: ValueCounts, now: ValueCounts) -> bool:
    """True if chance hardly explains that all values are unseen."""
    usual = (before.unseen + 1) / (before.values + 2)
    return usual**now.values < _CHANCE


def _differ(before: int, of_before: int, now: int, of_now: int) -> bool:
    """True if two shares differ by more than LIMIT, and what is beyond it is not by chance."""
    if not of_before or not of_now:
        return False
    error = math.hypot(_error(before, of_before), _error(now, of_now))
    return abs(before / of_before - now / of_now) > LIMIT + _Z * error


def _error(count: int, of: int) -> float:
    """The standard error of a share; that of few values is large (Agresti and Coull 1998)."""
    share = (count + 1) / (of + 2)
    return math.sqrt(share * (1 - share) / of)


def _lengths_differ(before: ValueCounts, now: ValueCounts) -> bool:
    shorter, longer = sorted((before.mean_length, now.mean_length))
    error = math.sqrt(before.length_variance / before.rows + now.length_variance / now.rows)
    return longer > LENGTH_LIMIT * max(shorter, 1 / LENGTH_LIMIT) and longer - shorter > _Z * error


def _moved(before: ValueCounts, now: ValueCounts) -> float:
    """The standard deviations by which the mean size of numbers has moved; 0 if by less than the limit and chance."""
    deviation = max(math.sqrt(before.size_variance), _LEAST_DEVIATION)
    moved = (now.mean_size - before.mean_size) / deviation
    variance = max(before.size_variance, now.size_variance)
    error = math.sqrt(before.size_variance / before.rows + variance / now.rows) / deviation
    return moved if abs(moved) > SIZE_LIMIT + _Z * error else 0.0


def deviation_text(found: Sequence[Deviation], rows: str) -> str:
    """A warning with the differences between ``rows`` and the rows that the model was validated on."""
    table = text_table(("column", "", "usually", "here"), [each.words for each in found])
    return (
        f"{rows} differ from the rows that the model was validated on; scores may be wrong:\n{table}\n"
        "is a column lost, renamed, or written in another notation or unit?"
    )


class ValueWatch:
    """Compares rows with the ``usual`` ones while they are scored, and reports each deviation once.

    All rows of a window of WINDOW_ROWS, and the newest RECENT_ROWS alone, are compared: many good rows must not hide a
    column that breaks.
    """

    def __init__(self, usual: Mapping[str, ValueCounts], counter: ValueCounter) -> None:
        self.usual, self.counter = usual, counter
        self._reported: set[tuple[str, str]] = set()
        self._windows = [_Window(size, counter.sums.copy()) for size in (WINDOW_ROWS, RECENT_ROWS)]

    def news(self) -> list[Deviation]:
        """The deviations of the newest rows that were not reported before."""
        found = [
            deviation
            for window in self._windows
            if (sums := window.compared(self.counter.sums)) is not None
            for deviation in deviations(self.usual, self.counter.counts_of(sums))
        ]
        new = {(each.column, each.what): each for each in found}
        self._reported, before = self._reported | {*new}, self._reported
        return [each for key, each in new.items() if key not in before]


class _Window:
    """The next ``size`` rows behind those of the sums ``before`` [columns, 7], and so on."""

    def __init__(self, size: int, before: NDArray[np.int64]) -> None:
        self._size, self._before, self._compared = size, before, 0

    def compared(self, total: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The sums of the window's rows out of the ``total``; None until there are many more than were compared."""
        sums = total - self._before
        rows = int(sums[0, 0]) if len(sums) else 0
        if rows < 1.25 * self._compared or rows == self._compared:
            return None
        self._compared = rows
        if rows >= self._size:
            self._compared, self._before = 0, total.copy()
        return sums
