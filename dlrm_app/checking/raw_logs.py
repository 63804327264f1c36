"""dlrm-check on raw logs without a description: a table of a sample of their rows, and a proposed dataset= for them.

The sample is the beginning of a text file, or the beginnings of some Parquet files, evenly spread.
"""

import csv
import logging
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.files import output_problems, write_text
from dlrm_app.preprocessing.read.beginning import BYTE_ORDER_MARK, refuse_other_file
from dlrm_app.preprocessing.read.parquet_columns import READABLE, TIME, content_of, is_list, names_in
from dlrm_app.preprocessing.read.parser import NULLS
from dlrm_app.preprocessing.read.spec import is_column_name
from dlrm_app.preprocessing.units.find_sources import find_files
from dlrm_app.preprocessing.units.parquet_units import ParquetFeed, footer_of, units_of
from dlrm_app.preprocessing.units.source import InputFile
from dlrm_app.preprocessing.units.unit_text import TextFeed
from dlrm_app.result import Paragraph, Result
from dlrm_app.table import Cell, share, text_table
from dlrm_app.text import listed, percent

logger = logging.getLogger(__name__)

_FILES, _BYTES = 8, 8 << 20
"""The most Parquet files to read, and the bytes of all together."""
_LINES = 200
"""Lines that are used to find the delimiter, the quote and the header."""
_DELIMITERS, _SEPARATORS = "\t\x01;,|", "|;, "  # ; before , because it is beside decimal commas
_CERTAIN = ("null", "none", "n/a", "nan", "\\n")
"""Words that mean a missing value in any column; the rest of NULLS do so only in columns of numbers."""
_OUTCOME = re.compile(r"click|label|target|conver|purchas|bought|buy|order|install|^y$", re.I)
_IDENTIFIER = re.compile(
    r"(?i:(^|_)(id|key|code|zip|hash|user|item|campaign|shop|device)s?(_|$))|[a-z]I[dD]$"
)
_WHOLE = r"[+-]?\d{1,18}"
_MOMENT = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?"
_FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_COMMA = r"[+-]?\d+(,\d+)?"  # numbers with decimal commas, or whole ones
_VALUE = rf"{_FLOAT}|{_COMMA}|true|false|[0-9a-f]{{8}}|"
"""Texts that cannot be the name of a column."""
_LABEL, _LABEL_WORDS = r"[01](\.0*)?|true|false", r"yes|no|[ynft]"
"""Labels as they are read, and words that also mean one or the other."""
_FEW_ROWS = 100
"""The least number of rows in which values that all differ are no accident."""
_ID_DIGITS, _LARGE_ID = 4, 1e5
_LIST_SHARE = 0.05
"""Values are read as lists if at least this share of them has a separator."""
_HEADS = ("column", "type", "missing", "distinct", "most frequent")


@dataclass
class Seen:
    """A column of the sample. ``counts``: occurrences of each value as text; for lists, of their elements."""

    name: str
    stored: Any
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    empty_lists: int = 0

    def add(self, values: pa.ChunkedArray) -> None:
        """Adds the ``values`` of a file to the counts."""
        self.rows += len(values)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if is_list(values.type):
            self.empty_lists += (
                pc.sum(pc.equal(pc.fill_null(pc.list_value_length(values), 0), 0)).as_py() or 0
            )
            values = pc.list_flatten(values)
        if pa.types.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        elif pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        texts = values.cast(pa.string(), safe=False).drop_null()  # bytes that are not UTF-8 too
        distinct, counts = pc.value_counts(texts.cast(pa.binary())).flatten()
        for text, count in zip(distinct.to_pylist(), counts.to_pylist(), strict=True):
            self.counts[text.decode("utf-8", "replace")] += count

    def fits(self, pattern: str) -> bool:
        """True if there are values and all of them match ``pattern``."""
        return _fit(pattern, self.counts)

    def has(self, pattern: str) -> float:
        """The share of values that contain ``pattern``."""
        holding = sum(count for value, count in self.counts.items() if re.search(pattern, value))
        return holding / max(self.counts.total(), 1)

    @property
    def missing(self) -> float:
        """The share of rows without a value."""
        return (self.empty_lists if is_list(self.stored) else self.rows - self.counts.total()) / self.rows

    def cells(self) -> list[str | Cell]:
        """The column's row in the table."""
        often = [
            f"{value[:24]!r} {percent(count / self.counts.total())}"
            for value, count in self.counts.most_common(1)
        ]
        return [self.name, str(self.stored), share(self.missing), f"{len(self.counts):,}", *(often or [""])]


def _fit(pattern: str, values: Iterable[str]) -> bool:
    fits = re.compile(pattern, re.ASCII | re.IGNORECASE).fullmatch
    return any(True for _ in values) and all(map(fits, values))


class Sample(NamedTuple):
    """A sample of a log.

    ``unread``: name → type that cannot be used. ``marks``: for text, delimiter, quote and header.
    """

    columns: list[Seen]
    unread: dict[str, Any]
    bad_lines: int
    marks: dict[str, Any]
    nulls: list[str]
    """The words that mean a missing value."""


@dataclass(frozen=True)
class Proposal(Result):
    """A dataset's YAML for raw files, proposed from a sample of their rows. ``path``: where it was written, if it was.

    ``given``: the files as they were named; ``name``: of the dataset;
    ``has_label``: whether the files have a label column.
    """

    yaml: str
    path: Path | None
    given: Any
    name: str
    has_label: bool

    def paragraphs(self) -> Iterable[Paragraph]:
        """The YAML, or the file that it was written to."""
        yield self.yaml if self.path is None else f"wrote {self.path}"


def check_raw(given: Any, output: str | None) -> Proposal:
    """Proposes a dataset's YAML for the files ``given``, writes it to ``output`` if
    there is one, and logs what the files contain.
    """
    refuse_if(output_problems("output", Path(output), is_new=True) if output else [])
    sources = find_files("input", given)
    sample = sample_rows(sources)
    proposed = propose(sample)
    first = sources[0].path
    name = re.sub(r"\W", "_", Path(first).name.partition(".")[0], flags=re.ASCII)
    origin = f"a sample of {sample.columns[0].rows:,} rows of {first}" + " and others" * (len(sources) > 1)
    lines = [f"{origin}:", text_table(_HEADS, [column.cells() for column in sample.columns])]
    lines += [", ".join(f"{key} {value!r}" for key, value in sample.marks.items())] * bool(sample.marks)
    lines += [f"{sample.bad_lines:,} lines have another number of fields"] * (sample.bad_lines > 0)
    lines += [f"{column} is {kind}, which cannot be used" for column, kind in sample.unread.items()]
    logger.info("\n".join(lines))
    text = as_yaml(name, origin, proposed, sample)
    path = None if output is None else Path(output)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return Proposal(text, path, given, name, any(each.role == "label" for each in proposed))


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
    columns = {name: Seen(name, types.get(name, pa.string())) for name in names if name not in unread}
    chosen = sources[:: -(-len(sources) // _FILES)]
    for source in chosen:
        if lacking := [name for name in names if name not in names_in(source)]:
            raise ConfigError(
                Problem(source.path, f"lacks columns that the first file has, {listed(lacking)}")
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
    refuse_other_file(source.path, text[:8], True)
    decoded = text.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    if not (lines := decoded.replace("\r\n", "\n").split("\n")[:-1]):
        return Sample([], {}, 0, {}, [])
    delimiter, quote, top = _marks(lines[:_LINES], source.path)
    header = _is_header(top)
    refuse_other_file(source.path, text[:8], header)
    names = top[0] if header else [f"column_{place}" for place in range(len(top[0]))]
    _refuse_twice(source.path, names)
    records = list(_fields(lines, delimiter, quote))[header:]
    rows = [row for row in records if len(row) == len(names)]
    values = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = [
        Seen(name, pa.string(), len(rows), Counter(column))
        for name, column in zip(names, values, strict=True)
    ]
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
    """Returns (delimiter, quote, the lines' fields) for the delimiter with which
    most lines have as many fields as the first.
    """
    found = []
    for place, delimiter in enumerate(_DELIMITERS):
        opening = re.compile(rf'(^|{re.escape(delimiter)})"')
        quote = '"' if any(map(opening.search, lines)) else None
        rows = list(_fields(lines, delimiter, quote))
        if rows and len(rows[0]) > 1:
            alike = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
            found.append((round(alike, 1), -place, delimiter, quote, rows))
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
    return not again and not any(_fit(_VALUE, [field]) for field in [first or rest[0], *rest])


def _null_words(column: Seen) -> list[str]:
    words = [value for value in column.counts if value.lower() in NULLS]
    is_number = _fit(_FLOAT, column.counts.keys() - {"", *words})
    return [word for word in words if is_number or word.lower() in _CERTAIN]


class Proposed(NamedTuple):
    """A column's line in the YAML, with a comment after it if it is a guess."""

    name: str
    role: str
    kind: str | None = None
    separator: str | None = None
    note: str = ""
    makes: tuple[str, ...] = ()
    """The kinds of columns to derive from it."""


def propose(sample: Sample) -> list[Proposed]:
    """Proposes a role and a kind for each column."""
    may_be = filter(_may_be_label, sample.columns)
    labels = [column.name for column in sorted(may_be, key=lambda column: not column.fits(_LABEL))]
    outcomes = [name for name in labels if _OUTCOME.search(name)]
    taken = f"{sample.marks.get('delimiter', '')}{sample.marks.get('quote') or ''}"
    found = []
    for column in sample.columns:
        if column.name not in (outcomes or labels[:1]):
            found.append(_feature(column, taken))
            continue
        role, note = "label", "guess: it holds only 0 and 1" * (len(outcomes) != 1)
        if not column.fits(_LABEL):
            words = " and ".join(sorted(column.counts))
            role, note = "ignore", f"guess: the label, if its {words} are written as 0 and 1"
        elif column.missing:
            note = f"{percent(column.missing)} of the rows have none, and are rejected"
        found.append(Proposed(column.name, role, note=note))
    return found


def _may_be_label(column: Seen) -> bool:
    fits = column.fits(_LABEL) or column.fits(_LABEL_WORDS)
    if is_list(column.stored) or not is_column_name(column.name) or not fits:
        return False
    return _OUTCOME.search(column.name) is not None or (len(column.counts) > 1 and not column.missing)


def _feature(column: Seen, taken: str) -> Proposed:
    """Proposes how to read a feature. ``taken``: characters that cannot separate the elements of lists."""
    name, num_values = column.name, len(column.counts)
    is_whole, is_id = column.fits(_WHOLE), _IDENTIFIER.search(name) is not None
    if not is_column_name(name):
        return Proposed(
            name, "ignore", note="its name is empty, holds / or begins with a dot; rename it to use it"
        )
    if column.has("[\n\ufffd]"):
        return Proposed(name, "ignore", note="has line breaks, or bytes that are not UTF-8; clean it first")
    if num_values == 0 or (num_values == 1 and not column.missing):
        return Proposed(name, "ignore", note="guess: constant" if num_values else "guess: always missing")
    if content_of(column.stored) == TIME or column.fits(_MOMENT):
        makes = ("hour", "weekday") if column.has(":") else ("weekday",)
        return Proposed(name, "time", "iso", note="guess", makes=makes)
    if is_list(column.stored):
        return Proposed(name, "sparse", "integer" if is_whole else "string", "|")
    if column.fits(_COMMA) and column.has(","):
        note = "guess: decimal commas; write points for role: dense, kind: float"
        note += "; lists are role: sparse, kind: integer, separator: ','" * ("," not in taken)
        return Proposed(name, "ignore", note=note)
    if num_values == column.counts.total() >= _FEW_ROWS and (is_whole or not column.fits(_FLOAT)):
        return Proposed(name, "ignore", note="guess: no value comes twice, so it names the row")
    if column.fits("[0-9a-f]{8}") and column.has("[a-fA-F]|^0"):
        return Proposed(name, "sparse", "hex")
    if is_whole and (is_id or _look_like_ids(column.counts)):
        return Proposed(name, "sparse", "integer", note="guess: dense if it is an amount")
    if is_whole:
        return Proposed(name, "dense", "integer", note="guess: sparse if it is an id or a code")
    if is_id and column.fits(rf"{_WHOLE}(\.0*)?"):
        note = "guess: ids stored as floats; write them without the point, 1018.0 and 1018 are two strings"
        return Proposed(name, "sparse", "string", note=note)
    if column.fits(_FLOAT) and not column.fits(r"[+-]?\d+"):  # whole numbers of more digits are ids
        return Proposed(name, "dense", "float")
    separator, kind = _separator(column, taken)
    return Proposed(name, "sparse", kind, separator, "guess: a list" * (separator is not None))


def _look_like_ids(numbers: Iterable[str]) -> bool:
    """True for whole numbers that all have the same number of digits, or are mostly large."""
    sizes = {len(number) for number in numbers}
    return (len(sizes) == 1 and min(sizes) >= _ID_DIGITS) or statistics.median(
        map(float, numbers)
    ) >= _LARGE_ID


def _separator(column: Seen, taken: str) -> tuple[str | None, str]:
    """Returns (the separator of a column's lists or None, the kind of their elements)."""
    for mark in _SEPARATORS:
        if mark in taken or column.has(re.escape(mark)) < _LIST_SHARE:
            continue
        elements = {part for value in column.counts for part in value.split(mark)} - {""}
        if _fit(_WHOLE, elements):
            return mark, "integer"
        if mark != " " and 2 * len(elements) <= len(column.counts):
            return mark, "string"
    return None, "string"


def as_yaml(name: str, origin: str, proposed: Sequence[Proposed], sample: Sample) -> str:
    """The dataset's YAML."""
    labels = [each.name for each in proposed if each.role == "label"]
    lines = [f"# Proposed by dlrm-check from {origin}"]
    lines += [f"{key}: {_flow(value)}" for key, value in {"name": name, **sample.marks}.items()]
    if sample.nulls:
        lines.append(f"null_values: {_flow(sample.nulls)}  # guess: words that mean a missing value")
    if len(labels) > 1:
        lines.append(f"label: {_flow(labels[0])}  # guess: the one to learn; the others are left out")
    roles = {each.role for each in proposed}
    lines += [f"# no {role} column was found" for role in ("label", "sparse") if role not in roles]
    lines.append("columns:")
    for each in proposed:
        entry = {key: value for key, value in zip(each._fields[:4], each, strict=False) if value is not None}
        lines.append(f"  - {_flow(entry)}" + f"  # {each.note}" * bool(each.note))
    made = [
        f"  - {_flow({'name': f'{each.name}_{kind}', 'kind': kind, 'of': each.name})}"
        for each in proposed
        for kind in each.makes
    ]
    return "\n".join([*lines, *["derived:"] * bool(made), *made, ""])


def _flow(value: Any) -> str:
    """``value`` as YAML on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
