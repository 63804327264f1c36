"""A sample of raw logs without a description: the beginning of a text file, or the beginnings of some Parquet files."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.logs.beginning import refuse_mark
from dlrm_app.logs.parquet_columns import READABLE, content_of, is_list, names_in
from dlrm_app.logs.rejects import LIKELY_NULLS
from dlrm_app.logs.sources.file_kinds import BYTE_ORDER_MARK
from dlrm_app.logs.sources.parquet_units import ParquetFeed, footer_of, units_of
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.text_units import TextFeed
from dlrm_app.table import Cell, share
from dlrm_app.text import listed, percent

_FILES, _BYTES = 8, 8 << 20
"""The most Parquet files to read, and the bytes of all together."""
_LINES = 200
"""Lines that are used to find the delimiter, the quote and the header."""
_DELIMITERS = "\t\x01;,|"  # ; before , because it occurs with decimal commas
_CERTAIN = ("null", "none", "n/a", "nan", "\\n")
"""Words for a missing value in any column; other LIKELY_NULLS and infinite numbers count in columns of numbers only.
"""
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
COMMA = r"[+-]?\d+(,\d+)?"  # numbers with decimal commas, or whole ones
_VALUE = rf"{FLOAT}|{COMMA}|true|false|[0-9a-f]{{8}}|"
"""Texts that cannot be the name of a column."""


@dataclass
class SampledColumn:
    """A column of the sample. ``counts``: occurrences of each value as text; for lists, of their elements."""

    name: str
    stored: pa.DataType
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    empty_lists: int = 0
    texts: list[pa.ChunkedArray] = field(default_factory=list)
    """The value of each row as bytes of text, null where it is missing; empty for lists."""

    def add(self, values: pa.ChunkedArray) -> None:
        self.rows += len(values)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if is_list(values.type):
            self.empty_lists += (
                pc.sum(pc.equal(pc.fill_null(pc.list_value_length(values), 0), 0)).as_py() or 0
            )
            values = pc.list_flatten(values)
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), None, values)
        elif pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        texts = values.cast(pa.string(), safe=False).cast(pa.binary())  # bytes that are not UTF-8 too
        if not is_list(self.stored):
            self.texts.append(texts)
        distinct, counts = pc.value_counts(texts.drop_null()).flatten()
        for text, count in zip(distinct.to_pylist(), counts.to_pylist(), strict=True):
            self.counts[text.decode("utf-8", "replace")] += count

    def codes(self) -> tuple[NDArray[np.int64], list[str]]:
        """(for each row the number of its value, -1 where it is missing; the values)."""
        encoded = pa.chunked_array(self.texts, pa.binary()).combine_chunks().dictionary_encode()
        values = [value.decode("utf-8", "replace") for value in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        lost = [number for number, value in enumerate(values) if value not in self.counts]
        return np.where(np.isin(codes, lost), -1, codes), values

    def fits(self, pattern: str) -> bool:
        """True if there are values and all of them match ``pattern``."""
        return all_fit(pattern, self.counts)

    def has(self, pattern: str) -> float:
        """The share of values that contain ``pattern``."""
        holding = sum(count for value, count in self.counts.items() if re.search(pattern, value))
        return holding / max(self.counts.total(), 1)

    @property
    def missing(self) -> float:
        """The share of rows without a value."""
        return (self.empty_lists if is_list(self.stored) else self.rows - self.counts.total()) / self.rows

    def cells(self) -> list[str | Cell]:
        often = [
            f"{value[:24]!r} {percent(count / self.counts.total())}"
            for value, count in self.counts.most_common(1)
        ]
        return [self.name, str(self.stored), share(self.missing), f"{len(self.counts):,}", *(often or [""])]


def all_fit(pattern: str, values: Iterable[str]) -> bool:
    fits = re.compile(pattern, re.ASCII | re.IGNORECASE).fullmatch
    return any(True for _ in values) and all(map(fits, values))


class Sample(NamedTuple):
    """A sample of a log.

    ``unread``: name → type that cannot be used. ``marks``: for text, delimiter, quote and header.
    """

    columns: list[SampledColumn]
    unread: dict[str, pa.DataType]
    bad_lines: int
    marks: dict[str, str | bool | None]
    nulls: list[str]
    """The words that mean a missing value."""


def sample_rows(sources: Sequence[InputFile]) -> Sample:
    """Reads the sample. Raises ConfigError for files that are not logs, and for files of different kinds or columns."""
    if len({source.format == "parquet" for source in sources}) > 1:
        raise ConfigError(Problem("input", "names Parquet and text", "check one kind at a time"))
    sample = _look_at_parquet(sources) if sources[0].format == "parquet" else _look_at_text(sources[0])
    if not sample.columns or not sample.columns[0].rows:
        raise ConfigError(Problem(str(sources[0].path), "has no rows", "give logs that have some"))
    sample.nulls.extend(sorted({word for column in sample.columns for word in _null_words(column)}))
    for column in sample.columns:
        for word in ("", *sample.nulls):
            column.counts.pop(word, None)
    return sample


def _look_at_parquet(sources: Sequence[InputFile]) -> Sample:
    names = names_in(sources[0])
    _refuse_twice(sources[0].path, names)
    types = {entry.name: entry.type for entry in footer_of(sources[0]).schema.to_arrow_schema()}
    unread = {name: kind for name, kind in types.items() if content_of(kind) not in READABLE}
    columns = {
        name: SampledColumn(name, types.get(name, pa.string())) for name in names if name not in unread
    }
    chosen = sources[:: -(-len(sources) // _FILES)]
    for source in chosen:
        if lacking := [name for name in names if name not in names_in(source)]:
            raise ConfigError(
                Problem(str(source.path), f"lacks columns that the first file has, {listed(lacking)}")
            )
        if units_of(source, len(columns), _BYTES // len(chosen)):
            feed = ParquetFeed(source, {name: name for name in columns}, _BYTES // len(chosen), (0,))
            for name, values in zip(columns, next(feed.items()).table.columns, strict=True):
                columns[name].add(values)
    return Sample(list(columns.values()), unread, 0, {}, [])


def _look_at_text(source: InputFile) -> Sample:
    units = TextFeed(source, _BYTES, last=1).items()  # keeps the file open
    block = next(units).load()
    text = block.text[block.start : block.stop].tobytes()
    decoded = text.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    if not (lines := decoded.replace("\r\n", "\n").split("\n")[:-1]):
        return Sample([], {}, 0, {}, [])
    if "\r" in lines[0].rstrip("\r"):
        raise ConfigError(
            Problem(str(source.path), "ends its lines in CR alone", "write LF, as tr '\\r' '\\n' does")
        )
    delimiter, quote, top = _marks(lines[:_LINES], source.path)
    header = _is_header(top)
    if not header:
        refuse_mark(source.path, text)
    names = top[0] if header else [f"column_{place}" for place in range(len(top[0]))]
    _refuse_twice(source.path, names)
    records = list(_fields(lines, delimiter, quote))[header:]
    rows = [row for row in records if len(row) == len(names)]
    values = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = [SampledColumn(name, pa.string()) for name in names]
    for column, texts in zip(columns, values, strict=True):
        column.add(pa.chunked_array([pa.array(texts, pa.string())]))
    marks = {"delimiter": delimiter, "quote": quote, "header": header}
    return Sample(columns, {}, len(records) - len(rows), marks, [])


def _refuse_twice(path: str, names: Sequence[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    refuse_if([Problem(str(path), f"names {name} twice", "rename one") for name in twice])


def _fields(lines: Sequence[str], delimiter: str, quote: str | None) -> Iterator[list[str]]:
    """The fields of each record, up to a quote that is never closed."""
    kind: Any = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
    ended = (f"{line}\n" for line in lines)
    with suppress(csv.Error):
        yield from csv.reader(ended, delimiter=delimiter, quotechar=quote, quoting=kind)


def _marks(lines: Sequence[str], path: str) -> tuple[str, str | None, list[list[str]]]:
    """(delimiter, quote, fields of the lines) for the delimiter with which most lines have equally many
    fields.
    """
    found = []
    for place, delimiter in enumerate(_DELIMITERS):
        opening = re.compile(rf'(^|{re.escape(delimiter)})"')
        quote = '"' if any(map(opening.search, lines)) else None
        rows = list(_fields(lines, delimiter, quote))
        if rows and len(rows[0]) > 1:
            share = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
            found.append((round(share, 1), -place, delimiter, quote, rows))
    if not found and all("::" in line for line in lines):
        raise ConfigError(
            Problem(path, "separates its fields by two characters, ::", "write one, as sed 's/::/\\t/g' does")
        )
    if not found:
        shown = ", ".join(map(repr, _DELIMITERS))
        raise ConfigError(Problem(path, f"has one column in its first line by any of the delimiters {shown}"))
    return max(found)[2:]


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """True if no field of the first line could be a value, and none occurs again in its column.

    The first field may be empty, as pandas writes it.
    """
    again = any(field == other for row in rows[1:] for field, other in zip(rows[0], row, strict=False))
    first, *rest = rows[0]
    return not again and not any(all_fit(_VALUE, [field]) for field in [first or rest[0], *rest])


def _null_words(column: SampledColumn) -> list[str]:
    words = [value for value in column.counts if value.lower() in LIKELY_NULLS or _INFINITE.fullmatch(value)]
    is_number = all_fit(FLOAT, column.counts.keys() - {"", *words})
    return [word for word in words if is_number or word.lower() in _CERTAIN]
