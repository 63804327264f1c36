"""Decodes columns of plain types by polars, which takes half of Arrow's time or less."""

from collections.abc import Sequence

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
    """The columns of strings whose least and greatest values have at most 12
    bytes, by the statistics of all row groups.
    """
    names = []
    for index in range(footer.num_columns):
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        ends = [
            end for each in found if each is not None and each.has_min_max for end in (each.min, each.max)
        ]
        if ends and all(isinstance(end, str | bytes) and len(end) <= _VIEW for end in ends):
            names.append(footer.schema.column(index).path)
    return names


def decode_plain(
    places: list[str] | list[bytes], names: Sequence[str], first: int, num_rows: int
) -> pa.Table | None:
    """The columns ``names`` of the rows from ``first`` on; strings come as views. None for what polars refuses.

    ``places``: the paths of files, or the bytes of each.
    """
    polars = load_polars()
    frame = polars.scan_parquet(places, glob=False, hive_partitioning=False, extra_columns="ignore")
    try:
        decoded = frame.slice(first, num_rows).select(polars.selectors.by_name(*names)).collect()
    except (polars.exceptions.PolarsError, OSError) as error:
        if isinstance(error, OSError) and is_disk_error(error):
            raise
        return None
    if len(decoded) != num_rows:
        return None
    if len(places) == 1:
        return decoded.to_arrow(compat_level=polars.CompatLevel.newest())
    columns = {}
    for name in names:  # one after another, so that one column at a time is there twice
        column = decoded.drop_in_place(name).rechunk()
        columns[name] = column.to_arrow(compat_level=polars.CompatLevel.newest())
    return pa.table(columns)
