"""Decodes the columns of a Parquet file, by polars or by Arrow: its footer decides which."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.files import is_disk_error
from dlrm_app.kernels.memory import load_polars

_PLAIN = (
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)
_VIEW = 12
"""The most bytes of a string that lies within a view."""


def is_plain(kind: pa.DataType) -> bool:
    """True for types of which polars and Arrow give the same values: numbers, true and false, strings."""
    return any(is_kind(kind) for is_kind in _PLAIN)


def short_texts(footer: pq.FileMetaData) -> list[str]:
    """The columns of strings whose ends have at most 12 bytes, by the statistics of all row groups."""
    names = []
    for index in range(footer.num_columns):
        if footer.schema.column(index).physical_type != "BYTE_ARRAY":
            continue  # nor are there ends of times that Python does not have
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        ends = [
            end for each in found if each is not None and each.has_min_max for end in (each.min, each.max)
        ]
        if ends and all(isinstance(end, str | bytes) and len(end) <= _VIEW for end in ends):
            names.append(footer.schema.column(index).path)
    return names


class ParquetDecoder:
    """Decodes the columns ``names`` of the row groups ``groups`` of a Parquet file.

    polars reads the file at ``place`` and takes half of Arrow's time or less; without a place, Arrow reads what
    ``open_file`` opens, each column through a small buffer. One of them decodes all columns. What polars refuses is
    left to Arrow, which tells what is wrong.
    """

    def __init__(
        self,
        footer: pq.FileMetaData,
        open_file: Callable[[], AbstractContextManager[pq.ParquetFile]],
        place: str | None,
        names: Sequence[str],
        groups: range,
    ) -> None:
        self._open_file, self._place, self._names, self._groups = open_file, place, [*names], groups
        self._before = sum(footer.row_group(group).num_rows for group in range(groups.start))
        self._file: pq.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._at = 0
        self._rest: pa.RecordBatch | None = None

    def __enter__(self) -> "ParquetDecoder":
        self._opened = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, start: int, stop: int) -> pa.Table:
        """Rows [start, stop), counted through the row groups. Each call must begin where the one before ended, or
        later.

        Raises ArrowInvalid if the file has fewer rows.
        """
        if self._place is not None:
            table = decode_plain([self._place], self._names, self._before + start, stop - start)
            if table is not None:
                return table
        self._next(start - self._at, stop - start)
        return self._next(stop - start, stop - start)

    def _next(self, num_rows: int, batch_rows: int) -> pa.Table:
        if self._file is None:
            file = self._file = self._opened.enter_context(self._open_file())
            # one row group at a time: over several, Arrow would join their dictionaries into one
            self._batches = chain.from_iterable(
                file.iter_batches(max(batch_rows, 1), [group], self._names, use_threads=False)
                for group in self._groups
            )
        taken: list[pa.RecordBatch] = []
        self._at += num_rows
        while num_rows:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                raise pa.ArrowInvalid("it has fewer rows than its footer says")
            taken.append(batch.slice(0, num_rows))
            self._rest = batch.slice(num_rows) if batch.num_rows > num_rows else None
            num_rows -= taken[-1].num_rows
        return pa.Table.from_batches(taken, None if taken else self._file.schema_arrow)


def decode_plain(places: Sequence[str], names: Sequence[str], first: int, num_rows: int) -> pa.Table | None:
    """The columns ``names`` of the rows from ``first`` on, by polars; strings come as views.

    None for what polars refuses. ``places``: the paths of files, whose rows are counted through.
    """
    polars = load_polars()
    frame = polars.scan_parquet([*places], glob=False, hive_partitioning=False, extra_columns="ignore")
    try:
        decoded = frame.slice(first, num_rows).select(polars.selectors.by_name(*names)).collect()
    except (polars.exceptions.PolarsError, OSError) as error:
        if isinstance(error, OSError) and is_disk_error(error):
            raise
        return None
    if len(decoded) != num_rows:
        return None
    if len(places) > 1:  # each chunk costs a call for each column
        decoded = decoded.rechunk()
    return decoded.to_arrow(compat_level=polars.CompatLevel.newest())
