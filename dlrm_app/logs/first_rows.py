"""Looks at the first rows of some files for columns that are read in another way than they are written.

Lists that are filled up to one length, and times in another unit, would train another model without an error. Both are
reported before any work. A file's first rows show a mistake of the description, which all of its rows have.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.logs.arrow_rows import ArrowCursor, open_cursor
from dlrm_app.logs.parquet_columns import names_of
from dlrm_app.logs.raw_columns import RawColumns, RawList
from dlrm_app.logs.sources.parquet_units import open_parquet, schema_of, with_keys
from dlrm_app.logs.sources.source import DamagedFileError, InputFile, explained_damage
from dlrm_app.logs.sources.text_units import BEGINNING_BYTES, TextFeed
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.logs.strings import MISSING_KEY

logger = logging.getLogger(__name__)

_FILES, _ROWS = 64, 1000
_LEAST_TIMES = 30
_LEAST_LISTS, _MOST_SIZES, _LEAST_PADDED, _AT_AN_END = 50, 0.9, 0.1, 0.98
"""The shares from which lists look padded: lists of one length, those of them that end in one value, and its
occurrences at the end.
"""
_MONTH, _1990, _2100 = 31 * 86_400.0, 631_152_000.0, 4_102_444_800.0
_SOME = 0.01
UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}


def warn_of_odd_columns(files: Sequence[tuple[InputFile, Spec]]) -> None:
    """Logs each column that looks padded, or has times of another unit, with the first of ``files`` that shows it."""
    found: dict[str, str] = {}
    step = -(-len(files) // _FILES) or 1
    for source, spec in files[::step]:
        if spec.times or any(map(_may_be_padded, spec.columns)):
            with suppress(DamagedFileError):  # who reads it all names it, with a cure
                for name, fault in _faults(source, _times_and_lists(spec)):
                    found.setdefault(name, f"{source.path}: {name}: {fault}")
    for words in found.values():
        logger.warning(words)


class TimeWatch:
    """Warns once of each time of ``columns`` that cannot be of its unit, by the first rows that a program sends."""

    def __init__(self, columns: Sequence[LogColumn]) -> None:
        self._open = {number: (column, np.empty(0)) for number, column in enumerate(columns)}

    def add(self, times: NDArray[np.float64]) -> None:
        """``times`` [columns, rows]: those of further rows, in seconds."""
        for number, (column, before) in [*self._open.items()]:
            seen = np.concatenate([before, times[number][:_ROWS]])
            seen = seen[~np.isnan(seen)]
            self._open[number] = column, seen
            fault = time_fault(seen, column) if len(seen) >= _LEAST_TIMES else None
            if fault:
                logger.warning("%s: %s", column.name, fault)
            if fault or len(seen) >= _ROWS:
                del self._open[number]


def _faults(source: InputFile, spec: Spec) -> Iterator[tuple[str, str]]:
    """(column, its fault) in the first rows of ``source``."""
    for raw in islice(_rows(source, spec), 1):
        for column, times in zip(spec.times, raw.times, strict=True):
            if fault := time_fault(times, column):
                yield column.name, fault
        for column, lists in zip(spec.sparse, raw.lists, strict=True):
            if fault := padding_fault(lists, column):
                yield column.name, fault


def _rows(source: InputFile, spec: Spec) -> Iterator[RawColumns]:
    """The first rows of ``source``; of a Parquet file its first pages, since decoding a row group takes long."""
    if source.format != "parquet":
        for unit in TextFeed(source, BEGINNING_BYTES, last=1).items():
            yield from open_cursor(unit, spec).rows(_ROWS, None)
        return
    names = names_of(source, spec)
    stored = [name for name in names.values() if name in schema_of(source).names]
    with explained_damage(source), source.open() as raw, open_parquet(source, raw) as file:
        for batch in file.iter_batches(_ROWS, columns=stored, use_threads=False):
            table = with_keys(pa.Table.from_batches([batch]), names, [source], [len(batch)])
            yield from ArrowCursor(table, spec).rows(_ROWS, None)


def _may_be_padded(column: LogColumn) -> bool:
    return column.role == "sparse" and column.separator is not None and column.padding is None


def _times_and_lists(spec: Spec) -> Spec:
    """``spec`` with only the times and the whole lists."""

    def others_ignored(columns: tuple[LogColumn, ...]) -> tuple[LogColumn, ...]:
        return tuple(
            replace(column, first=None, last=None)
            if column.role == "time" or _may_be_padded(column)
            else replace(column, role="ignore")
            for column in columns
        )

    return replace(
        spec, columns=others_ignored(spec.columns), order=others_ignored(spec.order), derived=(), labels=()
    )


def padding_fault(lists: RawList, column: LogColumn) -> str | None:
    """The fault of lists that look filled up to one length; None if they do not."""
    sizes = np.diff(lists.ends)
    if (sizes > 0).sum() < _LEAST_LISTS:
        return None
    size, count = Counter(sizes[sizes > 0].tolist()).most_common(1)[0]
    if size < 2 or count < _MOST_SIZES * (sizes > 0).sum():
        return None
    keys = lists.elements[np.repeat(sizes == size, sizes)].reshape(count, size)
    for side, rows in (("begin", keys), ("end", keys[:, ::-1])):
        values, counts = np.unique(rows[:, 0], return_counts=True)
        value, share = values[counts.argmax()], counts.max() / count
        is_padding = rows == value
        at_the_end = np.logical_and.accumulate(is_padding, axis=1)
        is_run = at_the_end[:, 1].mean() >= _LEAST_PADDED / 2
        if share >= _LEAST_PADDED and is_run and at_the_end.sum() >= _AT_AN_END * is_padding.sum():
            word = "" if column.kind == "string" else f" {_shown(value, column)!r}"
            if value == MISSING_KEY:
                return (
                    f"most lists have {size} elements and {side} with missing ones: write lists without them"
                )
            return (
                f"most lists have {size} elements, and {share:.0%} {side} with the same value{word}: if it fills them "
                f'up, add padding: "{_shown(value, column)}" to the column'
            )
    return None


def _shown(key: np.uint64, column: LogColumn) -> str:
    if column.kind == "hex":
        return f"{int(key):x}"
    return str(int(np.int64(key))) if column.kind == "integer" else "WORD"


def time_fault(times: NDArray[np.float64], column: LogColumn) -> str | None:
    """The fault of times in seconds that cannot all be in the unit of ``column``; None if they can."""
    times = times[~np.isnan(times)]
    if not len(times):
        return None
    early, late = (times > 0) & (times < _MONTH), times >= _2100
    usual = ~early & ~late & (times != 0)
    if not usual.any() and early.any() and not late.any():
        return f"all times lie in January 1970{_unit_hint(times[early], column)}"
    if not usual.any() and late.all():
        return f"all times lie after 2099{_unit_hint(times[late], column)}"
    if column.kind in UNITS and usual.mean() >= _SOME:
        of_another = early if early.mean() >= _SOME else late
        if of_another.mean() >= _SOME and len(np.unique(times[of_another])) > 1:
            where = "in January 1970" if of_another is early else "after 2099"
            return f"{of_another.mean():.0%} of the times lie {where}: the column may hold times of two units, write one"
    return None


def _unit_hint(times: NDArray[np.float64], column: LogColumn) -> str:
    """The end of a message: the unit in which ``times`` would be of these years."""
    written = float(np.median(times)) * UNITS.get(column.kind or "", 1.0)
    fitting = [kind for kind, unit in UNITS.items() if _1990 <= written / unit < _2100]
    if column.kind not in UNITS or not fitting:
        return ": are they written in another unit?"
    return f": take kind: {fitting[0]}"
