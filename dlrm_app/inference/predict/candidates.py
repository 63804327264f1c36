"""Rows with lists of candidates: a row for each candidate to score, and a list of scores for each row.

Shapes: R rows of a log, E rows of candidates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.errors import Problem
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.parquet_columns import is_list
from dlrm_app.logs.raw_columns import RawColumns
from dlrm_app.logs.rejects import RejectedLine
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.text import listed


class Exploded(NamedTuple):
    """The candidates of rows [first, stop) of a log, one a row of ``table`` [E]; ``parents`` [E]: their rows' numbers."""

    first: int
    stop: int
    table: pa.Table
    parents: NDArray[np.int64]


def candidate_problems(names: Sequence[str], spec: Spec) -> list[Problem]:
    """A problem for each of ``names`` that cannot have a list of candidates."""
    columns = {column.name: column for column in spec.without_label().columns if column.role != "ignore"}
    ambiguous = "holds lists for the model itself, so that its lists would not be candidates"
    unknown = "is not a column that the model reads"
    return [
        Problem(
            "candidates",
            unknown if column is None else ambiguous,
            f"give columns of one value: {listed([n for n, c in columns.items() if c.separator is None], 12)}",
            name,
        )
        for name in names
        if (column := columns.get(name)) is None or column.separator is not None
    ]


def separated(spec: Spec, names: Sequence[str], separator: str | None) -> Spec:
    """``spec`` whose columns ``names`` hold lists, or single values again if ``separator`` is None."""

    def each(columns: tuple[LogColumn, ...]) -> tuple[LogColumn, ...]:
        return tuple(replace(c, separator=separator) if c.name in names else c for c in columns)

    return replace(spec, columns=each(spec.columns), order=each(spec.order))


def not_lists(origin: str, stored: pa.Schema, names: Sequence[str]) -> list[Problem]:
    """A problem for each of the columns ``names`` of the file ``origin`` that holds no lists."""
    cure = "leave it out: all candidates of a row share its value"
    return [
        Problem(f"candidates={name}", f"holds no lists in {origin}", cure)
        for name in names
        if name not in stored.names or not is_list(stored.field(name).type)
    ]


def lengths_of(table: pa.Table, candidates: Sequence[str]) -> tuple[NDArray[np.int64], list[RejectedLine]]:
    """(the number of candidates of each row [R], 0 where it is refused; the rows with lists of different lengths)."""
    import pyarrow.compute as pc

    each = [
        numbers_of(pc.fill_null(pc.list_value_length(table[name]), 0)).astype(np.int64) for name in candidates
    ]
    lengths = each[0].copy()
    rejects = []
    for row in np.flatnonzero(np.any([other != lengths for other in each], axis=0)).tolist():
        found = ", ".join(f"{name} {sizes[row]:,}" for name, sizes in zip(candidates, each, strict=True))
        reason = f"the lists of its candidates differ in length ({found})"
        rejects.append(RejectedLine(None, row, reason, candidates[0], ""))
        lengths[row] = 0
    return lengths, rejects


def explode(
    table: pa.Table, candidates: Sequence[str], lengths: NDArray[np.int64], most: int
) -> Iterator[Exploded]:
    """The candidates of ``table`` [R], up to ``most`` at a time, but those of a row together."""
    ends, first = np.cumsum(lengths), 0
    while first < len(table):
        before = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, before + most, side="right")), first + 1)
        rows, sizes = table.slice(first, stop - first), lengths[first:stop]
        parents = np.repeat(np.arange(len(rows)), sizes)
        columns = {
            name: _items(rows[name], sizes) if name in candidates else rows[name].take(array_of(parents))
            for name in rows.column_names
        }
        yield Exploded(first, stop, pa.table(columns), parents + first)
        first = stop


def encoded_candidates(
    table: pa.Table,
    candidates: Sequence[str],
    spec: Spec,
    encode: Callable[[RawColumns | None], pa.Table],
    most: int,
) -> Iterator[tuple[pa.Table, NDArray[np.int64], NDArray[np.int64], list[RejectedLine]]]:
    """Yields (the encoded candidates of several rows; the numbers of these rows, and of their candidates; the rows
    between them that are left out, because they or one of their candidates are malformed).

    ``encode`` gives the columns of raw values, or those of no rows.
    """
    lengths, unequal = lengths_of(table, candidates)
    for first, stop, exploded, parents in explode(table, candidates, lengths, most):
        cursor, encoded = ArrowCursor(exploded, spec), encode(None)
        for raw in cursor.rows(len(exploded), None):
            encoded = encode(raw)
        own = parents[cursor.row_lines()]
        found = [each._replace(line=int(parents[each.line])) for each in cursor.take_rejects()]
        bad = {
            each.line: each
            for each in reversed([each for each in unequal if first <= each.line < stop] + found)
        }
        numbers = np.setdiff1d(np.arange(first, stop), np.array([*bad], np.int64))
        if found:
            encoded = encoded.filter(pa.array(np.isin(own, numbers)))
        yield encoded, numbers, lengths[numbers], [bad[line] for line in sorted(bad)]


def _items(lists: pa.ChunkedArray, lengths: NDArray[np.int64]) -> pa.Array:
    """The items of ``lists`` [R], without those of rows whose ``lengths`` are 0 because they are refused."""
    return lists.combine_chunks().filter(pa.array(lengths > 0)).flatten()
