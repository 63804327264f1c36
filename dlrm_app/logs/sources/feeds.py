"""Feeds of the units of a file."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from dlrm_app.logs.sources.bundles import InputFeed
from dlrm_app.logs.sources.parquet_units import ParquetFeed, units_of
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.unit_text import TextFeed


def unit_feeds(
    source: InputFile, columns: Mapping[str, str], unit_bytes: int, is_wanted: Callable[[int], bool]
) -> Sequence[InputFeed]:
    """Feeds of the units whose numbers are wanted.

    A plain file has a feed for each unit, a compressed file one for all units, wanted or not, and a Parquet file one
    for the units of each run of row groups. ``columns``: the columns of a ParquetFeed.
    """
    if source.format == "parquet":
        rows = units_of(source, len(columns), unit_bytes)
        wanted = filter(is_wanted, range(len(rows)))
        shared = groupby(wanted, lambda number: rows[number].groups)
        return [ParquetFeed(source, columns, unit_bytes, tuple(numbers)) for _, numbers in shared]
    if source.is_compressed:
        return [TextFeed(source, unit_bytes)]
    num_units = max(-(-source.bytes // unit_bytes), 1)
    return [TextFeed(source, unit_bytes, unit, unit + 1) for unit in filter(is_wanted, range(num_units))]
