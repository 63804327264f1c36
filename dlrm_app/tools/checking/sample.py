"""A sample of raw logs without a description: the beginnings of some files, of text or of Parquet."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.logs.beginning import refuse_mark
from dlrm_app.logs.column_rules import MAX_NULL
from dlrm_app.logs.null_words import INFINITE
from dlrm_app.logs.parquet_columns import READABLE, TEXT, content_of, is_list, run_ids_in
from dlrm_app.logs.rejects import LIKELY_NULLS
from dlrm_app.logs.sources.file_kinds import BYTE_ORDER_MARK
from dlrm_app.logs.sources.parquet_units import ParquetFeed, footer_of, units_of
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.text_units import TextFeed
from dlrm_app.table import Cell, share
from dlrm_app.text import listed, percent
from dlrm_app.tools.checking.text_form import (
    COMMA,
    FLOAT,
    all_fit,
    fields_of,
    form_of,
    odd_fields,
    refuse_twice,
)

_FILES, _BYTES = 8, 8 << 20
"""The most files to read, and the bytes of all together."""
CERTAIN_NULLS = ("null", "none", "n/a", "nan", "\\n")
"""Words for a missing value in any column; other LIKELY_NULLS and infinite numbers count in columns of numbers only."""
_IN_LISTS = re.compile(
    rf"(?:^|[|;,\x02])\s*({'|'.join(map(re.escape, CERTAIN_NULLS))})\s*(?=[|;,\x02]|$)", re.IGNORECASE
)
"""A word for a missing value among the elements of a list."""
BLANKS = " \t\r\n"
_NO_MOMENT = r"0000-00-00([ T]00:00(:00(\.0+)?)?)?|[+-]?infinity"
"""Times that other programs write where none is known: MySQL, PostgreSQL."""
MOMENT = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|UTC|GMT|[+-]\d\d(:?\d\d)?))?)?"
_PADDED = rf"{FLOAT}|{COMMA}|{MOMENT}|true|false"


@dataclass
class SampledColumn:
    """A column of the sample. ``counts``: occurrences of each value as text; for lists, of their elements."""

    name: str
    stored: pa.DataType
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    empty_lists: int = 0
    texts: list[pa.ChunkedArray] = field(default_factory=list)
    """The value of each row as bytes of text, null where it is missing; of lists, of each element."""
    lengths: list[NDArray[np.int64]] = field(default_factory=list)
    """The number of elements of each row's list; empty for others."""
    was_padded: bool = False
    """True if there were blanks around its numbers."""

    def add(self, values: pa.ChunkedArray) -> None:
        self.rows += len(values)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if is_list(values.type):
            lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
            self.lengths.append(lengths)
            self.empty_lists += int(np.count_nonzero(lengths == 0))
            values = pc.list_flatten(values)
        if pa.types.is_floating(values.type):
            values = _without_points(pc.if_else(pc.is_nan(values), None, values))
        elif pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        texts = values.cast(pa.string(), safe=False).cast(pa.binary())  # bytes that are not UTF-8 too
        self.texts.append(texts)
        distinct, counts = pc.value_counts(texts.drop_null()).flatten()
        for text, count in zip(distinct.to_pylist(), counts.to_pylist(), strict=True):
            self.counts[text.decode("utf-8", "replace")] += count

    def unpad(self) -> None:
        """Leaves out the blanks around numbers and times; others keep theirs."""
        bare = {value: value.strip(BLANKS) for value in self.counts}
        words = {word for word in bare.values() if not word or word.lower() in LIKELY_NULLS}
        if all(value == text for value, text in bare.items()) or not all_fit(
            _PADDED, {*bare.values()} - words
        ):
            return
        counts, self.counts, self.was_padded = self.counts, Counter(), True
        for value, count in counts.items():
            self.counts[bare[value]] += count
        self.texts = [pc.utf8_trim(each.cast(pa.string()), BLANKS).cast(pa.binary()) for each in self.texts]

    def codes(self) -> tuple[NDArray[np.int64], list[str]]:
        """(for each row, or element of lists, the number of its value, -1 where it is missing; the values)."""
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


def _without_points(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as whole numbers if all are: texts of large ones have all digits then."""
    with suppress(pa.ArrowInvalid):
        return values.cast(pa.int64())
    return values


def words_of(name: str) -> list[str]:
    """The words of a column's name, in small letters."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


class Sample(NamedTuple):
    """A sample of a log.

    ``unread``: name → type that cannot be used.
    ``marks``: for text, delimiter, quote, header, and line_breaks if there are some within quotes.
    """

    columns: list[SampledColumn]
    unread: dict[str, pa.DataType]
    bad_lines: int
    marks: dict[str, str | bool | None]
    nulls: list[str]
    """The words that mean a missing value."""
    bad_byte: str = ""
    """The first byte of a text that is not UTF-8, with its line and file."""


def sample_rows(sources: Sequence[InputFile]) -> Sample:
    """Reads the sample. Raises ConfigError for files that are not logs, and for files of different kinds or columns."""
    if len({source.format == "parquet" for source in sources}) > 1:
        raise ConfigError(Problem("input", "names Parquet and text", "check one kind at a time"))
    look = _look_at_parquet if sources[0].format == "parquet" else _look_at_text
    sample = look(chosen_of(sources))
    if not sample.columns or not sample.columns[0].rows:
        raise ConfigError(Problem(str(sources[0].path), "has no rows", "give logs that have some"))
    for column in sample.columns:
        if content_of(column.stored) == TEXT:
            column.unpad()
    sample.nulls.extend(sorted({word for column in sample.columns for word in _null_words(column)}))
    for column in sample.columns:
        for word in ("", *sample.nulls):
            column.counts.pop(word, None)
    return sample


def chosen_of(sources: Sequence[InputFile]) -> list[InputFile]:
    """The files that are read: all, or some from the first to the last."""
    last, count = len(sources) - 1, min(len(sources), _FILES)
    return [sources[place * last // max(count - 1, 1)] for place in range(count)]


def _lacks(source: InputFile, columns: Sequence[str]) -> ConfigError:
    return ConfigError(Problem(str(source.path), f"lacks columns that the first file has, {listed(columns)}"))


def _look_at_parquet(sources: Sequence[InputFile]) -> Sample:
    names = run_ids_in(sources[0])
    refuse_twice(sources[0].path, names)
    types = {entry.name: entry.type for entry in footer_of(sources[0]).schema.to_arrow_schema()}
    unread = {name: kind for name, kind in types.items() if content_of(kind) not in READABLE}
    columns = {
        name: SampledColumn(name, types.get(name, pa.string())) for name in names if name not in unread
    }
    for source in sources:
        if lacking := [name for name in names if name not in run_ids_in(source)]:
            raise _lacks(source, lacking)
        if units_of(source, len(columns), _BYTES // len(sources)):
            feed = ParquetFeed(source, {name: name for name in columns}, _BYTES // len(sources), (0,))
            for name, values in zip(columns, next(feed.items()).table.columns, strict=True):
                columns[name].add(values)
    return Sample(list(columns.values()), unread, 0, {}, [])


def _look_at_text(sources: Sequence[InputFile]) -> Sample:
    texts = {source: text for source in sources if (text := _beginning(source, _BYTES // len(sources)))}
    if not texts:
        return Sample([], {}, 0, {}, [])
    first, *others = texts
    lines = {source: _lines_of(text) for source, text in texts.items()}
    form = form_of(str(first.path), lines[first], [line for source in others for line in lines[source]])
    records = form.records
    for source in others:
        refuse_if(odd_fields(str(source.path), lines[source], form.delimiter))
        more = list(fields_of(lines[source], form.delimiter, form.quote))
        records += _as_in_the_first(source, more, form.names) if form.header else more
    for source, text in texts.items():
        if not form.header:
            refuse_mark(source.path, text)
    rows = [row for row in records if len(row) == len(form.names)]
    values = zip(*rows, strict=True) if rows else [()] * len(form.names)
    columns = [SampledColumn(name, pa.string()) for name in form.names]
    for column, fields in zip(columns, values, strict=True):
        column.add(pa.chunked_array([pa.array(fields, pa.string())]))
    marks: dict[str, str | bool | None]
    marks = {"delimiter": form.delimiter, "quote": form.quote, "header": form.header}
    if any("\n" in field for row in [form.names, *rows] for field in row):
        marks["line_breaks"] = True
    bad_bytes = [byte for source, text in texts.items() if (byte := _first_bad_byte(text, source, first))]
    return Sample(columns, {}, len(records) - len(rows), marks, [], bad_bytes[0] if bad_bytes else "")


def _beginning(source: InputFile, size: int) -> bytes:
    """The lines of the first ``size`` bytes of a file."""
    units = TextFeed(source, size, last=1).items()  # keeps the file open
    block = next(units).load()
    return block.text[block.start : block.stop].tobytes()


def _lines_of(text: bytes) -> list[str]:
    decoded = text.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    return decoded.replace("\r\n", "\n").split("\n")[:-1]


def _as_in_the_first(
    source: InputFile, records: list[list[str]], names: Sequence[str]
) -> Iterator[list[str]]:
    """The records of a file with a header of its own, their fields in the order of ``names``."""
    header, *rows = records
    if lacking := [name for name in names if name not in header]:
        raise _lacks(source, lacking)
    places = [header.index(name) for name in names]
    for row in rows:
        yield [row[place] for place in places] if len(row) == len(header) else []


def _first_bad_byte(text: bytes, source: InputFile, first: InputFile) -> str:
    """The first byte of ``text`` that is not UTF-8, its line, and its file if not the first; empty if none is."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(10, 0, error.start) + 1
        return f"0x{text[error.start]:02X} in line {line:,}" + f" of {source.path}" * (source != first)
    return ""


def _null_words(column: SampledColumn) -> list[str]:
    words = [value for value in column.counts if value.lower() in LIKELY_NULLS or INFINITE.fullmatch(value)]
    blank = [value for value in column.counts if 0 < len(value) <= MAX_NULL and not value.strip(" \t")]
    in_lists = {
        word
        for value in column.counts
        if not re.match(r"\s*[\[({]", value)
        for word in _IN_LISTS.findall(value)
    } - {*column.counts}
    if in_lists:
        return [*blank, *in_lists, *(word for word in words if word.lower() in CERTAIN_NULLS)]
    none = [value for value in column.counts if re.fullmatch(_NO_MOMENT, value, re.IGNORECASE)]
    if none and (
        column.counts.keys() <= {"", *words, *none}
        or all_fit(MOMENT, column.counts.keys() - {"", *words, *none})
    ):
        return [*words, *none]
    is_number = all_fit(FLOAT, column.counts.keys() - {"", *words})
    return [*blank, *(word for word in words if is_number or word.lower() in CERTAIN_NULLS)]
