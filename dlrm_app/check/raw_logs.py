"""dlrm-check on raw logs that nothing describes yet: a table of a sample of their rows, and a proposed dataset= for them.

The sample is made of pieces of some files, evenly spread: of a compressed file its beginning, of Parquet whole small row
groups or the beginnings of large ones.
"""

import csv
import logging
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.files import output_problems, write_text
from dlrm_app.preprocess.read.beginning import BYTE_ORDER_MARK, refuse_other_file
from dlrm_app.preprocess.read.parquet_columns import READABLE, TIME, content_of, is_list, names_in
from dlrm_app.preprocess.read.parser import NULLS
from dlrm_app.preprocess.units.parquet_units import ParquetFeed, footer_of, units_of
from dlrm_app.preprocess.units.source import Source, find_files
from dlrm_app.preprocess.units.unit_text import TextFeed
from dlrm_app.table import Cell, share, text_table
from dlrm_app.text import listed, next_line, percent, setting

logger = logging.getLogger(__name__)

_FILES, _PIECES, _PIECE = 8, 8, 1 << 20
_LINES = 200
"""Lines that tell the delimiter, the quote and whether there is a header."""
_DELIMITERS, _SEPARATORS = "\t\x01,;|", "|;, "
_CERTAIN = ("null", "none", "n/a", "nan", "\\n")
"""Words that mean a missing value beside other words too; the rest of NULLS beside numbers alone."""
_OUTCOME = re.compile(r"click|label|target|conver|purchas|bought|buy|order|install|^y$", re.I)
_IDENTIFIER = re.compile(
    r"(?i:(^|_)(id|key|code|zip|hash|user|item|campaign|shop|device)s?(_|$))|[a-z]I[dD]$"
)
_WHOLE = r"[+-]?\d{1,18}"
_MOMENT = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?"
_FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_VALUE = re.compile(rf"{_FLOAT}|true|false|[0-9a-f]{{8}}|", re.I)
"""Texts that name no column."""
_FEW_ROWS = 100
"""No value comes twice in so many by chance."""
_ID_DIGITS, _LARGE_ID = 4, 1e5
_LIST_SHARE = 0.05
"""The share of values that hold a separator from which they are taken for lists."""
_HEADS = ("column", "type", "missing", "distinct", "most frequent")


class Sample(NamedTuple):
    """``columns``: name → values, of text as they are written. ``unread``: name → type that cannot be used."""

    columns: dict[str, Any]
    unread: dict[str, Any]
    bad_lines: int = 0
    marks: dict[str, Any] | None = None
    """The delimiter, the quote and whether there is a header, of text."""


def check_raw(given: Any, output: str | None) -> None:
    """Logs what the files ``given`` hold, and prints a dataset's YAML for them or writes it to ``output``."""
    refuse_if(output_problems("output", Path(output), is_new=True) if output else [])
    sources = find_files("input", given)
    sample = sample_rows(sources)
    columns, nulls = study(sample)
    marks = sample.marks or {}
    proposed = propose(columns, f"{marks.get('delimiter', '')}{marks.get('quote') or ''}")
    first = sources[0].path
    name = re.sub(r"\W", "_", Path(first).name.partition(".")[0], flags=re.ASCII)
    origin = f"a sample of {columns[0].rows:,} rows of {first}" + " and others" * (len(sources) > 1)
    lines = [f"{origin}:", text_table(_HEADS, [column.cells() for column in columns])]
    lines += [", ".join(f"{key} {value!r}" for key, value in marks.items())] * bool(marks)
    lines += [f"{sample.bad_lines:,} lines have another number of fields"] * (sample.bad_lines > 0)
    lines += [f"{column} is {kind}, which cannot be used" for column, kind in sample.unread.items()]
    logger.info("\n".join(lines))
    text = as_yaml(name, origin, proposed, nulls, marks)
    if output is None:
        print(f"\n{text}", flush=True)
    else:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        write_text(Path(output), text)
    logger.info(
        f"look at the guesses in {output}, then"
        if output
        else f"save this as {name}.yaml, look at its guesses, then"
    )
    files = given if isinstance(given, str) else f"[{','.join(given)}]"
    train = setting("input.train", files) if isinstance(given, str) else shlex.quote(f"input.train={files}")
    has_label = any(each.role == "label" for each in proposed)
    words = ["split.val=0.1", "split.test=0.1"] if has_label else ["'input.unlabelled=[train]'"]
    dataset = {"dataset": output or f"{name}.yaml"}
    logger.info(next_line("dlrm-preprocess", dataset, train, *words, setting("output", f"{name}_dataset")))


def sample_rows(sources: Sequence[Source]) -> Sample:
    """Reads the sample. Raises ConfigError for what is no log, and for files of different kinds or columns."""
    if len({source.format == "parquet" for source in sources}) > 1:
        raise ConfigError(["input names Parquet and text: check one kind at a time"])
    chosen = _spread(sources, _FILES)
    look = _look_at_parquet if sources[0].format == "parquet" else _look_at_text
    sample = look(chosen, max(_PIECES // len(chosen), 1))
    refuse_if(
        [] if any(map(len, sample.columns.values())) else [f"input: there are no rows in {chosen[0].path}"]
    )
    return sample


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` items, evenly spread: the first, and if more than one the last."""
    most = min(most, len(items))
    return [items[place * (len(items) - 1) // max(most - 1, 1)] for place in range(most)]


def _look_at_parquet(sources: Sequence[Source], most: int) -> Sample:
    names = names_in(sources[0])
    types = {field.name: field.type for field in footer_of(sources[0]).schema.to_arrow_schema()}
    unread = {name: kind for name, kind in types.items() if content_of(kind) not in READABLE}
    columns = {name: name for name in names if name not in unread}
    chunks: dict[str, list[Any]] = {name: [] for name in columns}
    for source in sources:
        _refuse_lacking(names, names_in(source), source.path)
        units = units_of(source, len(columns), _PIECE)
        for number in _spread([number for number, unit in enumerate(units) if unit.start == 0], most):
            for unit in ParquetFeed(source, columns, _PIECE, (number,)).items():
                for name, parts in chunks.items():
                    parts += [_plain(part) for part in unit.table[name].chunks]
    return Sample({name: pa.chunked_array(parts) for name, parts in chunks.items() if parts}, unread)


def _plain(array: Any) -> Any:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _look_at_text(sources: Sequence[Source], most: int) -> Sample:
    with sources[0].open() as raw:
        beginning = raw.read(8) if sources[0].format == "text" else b""
    refuse_other_file(sources[0].path, beginning, True)
    if not (lines := _read(sources[0], 0)[:_LINES]):
        return Sample({}, {})
    delimiter, quote, top = _marks(lines, sources[0].path)
    header = _is_header(top)
    names = top[0] if header else [f"column_{place}" for place in range(len(top[0]))]
    refuse_other_file(sources[0].path, beginning, header)
    rows, bad = [], 0
    for source in sources:
        order = next(_fields(_read(source, 0), delimiter, quote), names) if header else names
        _refuse_lacking(names, order, source.path)
        places = [order.index(name) for name in names]
        num_pieces = 1 if source.is_compressed else -(-source.bytes // _PIECE)
        for number in _spread(range(num_pieces), most):
            for row in _fields(_read(source, number)[header and number == 0 :], delimiter, quote):
                if len(row) == len(order):
                    rows.append([row[place] for place in places])
                else:
                    bad += 1
    columns = zip(names, map(pa.array, zip(*rows, strict=True)), strict=False)
    return Sample(dict(columns), {}, bad, {"delimiter": delimiter, "quote": quote, "header": header})


def _refuse_lacking(names: Sequence[str], there: Sequence[str], path: str) -> None:
    lacking = [name for name in names if name not in there]
    refuse_if([f"{path} lacks columns that the first file has: {listed(lacking)}"] if lacking else [])


def _read(source: Source, number: int) -> list[str]:
    """The lines that start in a piece of the text."""
    for unit in TextFeed(source, _PIECE, number, number + 1).items():
        text, start, stop = unit.load()
        lines = text[start:stop].tobytes().removeprefix(BYTE_ORDER_MARK if number == 0 else b"")
        return lines.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")[:-1]
    return []


def _fields(lines: Sequence[str], delimiter: str, quote: str | None) -> Iterator[list[str]]:
    """The fields of each record, up to a quote that nothing closes."""
    kind: Any = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
    ended = (f"{line}\n" for line in lines)
    with suppress(csv.Error):
        yield from csv.reader(ended, delimiter=delimiter, quotechar=quote, quoting=kind)


def _marks(lines: Sequence[str], path: str) -> tuple[str, str | None, list[list[str]]]:
    """(delimiter, quote, the lines' fields): of the delimiter by which most lines have as many fields as the first."""
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
        raise ConfigError([f"{path}: its first line has one column by any of the delimiters {shown}"])
    return max(found)[2:]


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """True if no field of the first line could be a value, nor comes again in its column."""
    again = any(field == other for row in rows[1:] for field, other in zip(rows[0], row, strict=False))
    return not again and not any(_VALUE.fullmatch(field) for field in rows[0])


@dataclass(frozen=True)
class Studied:
    """A column of the sample. ``values``: the different ones that are there; ``counts``: how often each is."""

    name: str
    stored: Any
    rows: int
    values: Any
    counts: Any
    empty_lists: int | None = None
    """Set for lists; values are their elements then."""

    def without(self, nulls: Sequence[str]) -> "Studied":
        """The column without empty texts and ``nulls``."""
        keep = pc.invert(pc.is_in(self.values, pa.array(["", *nulls], pa.string())))
        return replace(self, values=self.values.filter(keep), counts=self.counts.filter(keep))

    def fits(self, pattern: str) -> bool:
        """True if all values, and there are some, are of this form."""
        fitting = pc.match_substring_regex(self.values, f"^({pattern})$", ignore_case=True)
        return len(self.values) > 0 and bool(pc.all(fitting).as_py())

    def has(self, pattern: str) -> float:
        """The share of values that hold ``pattern``."""
        counts = self.counts.filter(pc.match_substring_regex(self.values, pattern))
        return (pc.sum(counts).as_py() or 0) / max(self.present, 1)

    @property
    def present(self) -> int:
        """Values that are there."""
        return int(pc.sum(self.counts).as_py() or 0)

    @property
    def missing(self) -> float:
        """The share of rows without a value."""
        return (self.rows - self.present if self.empty_lists is None else self.empty_lists) / self.rows

    def cells(self) -> list[str | Cell]:
        """What the table shows."""
        often = (
            self.values[pc.index(self.counts, pc.max(self.counts)).as_py()].as_py()
            if len(self.values)
            else ""
        )
        return [self.name, str(self.stored), share(self.missing), f"{len(self.values):,}", repr(often[:24])]


def study(sample: Sample) -> tuple[list[Studied], list[str]]:
    """(the columns, the words that mean a missing value)"""
    columns = [_count(name, values).without([]) for name, values in sample.columns.items()]
    nulls = sorted({word for column in columns for word in _null_words(column)})
    return [column.without(nulls) for column in columns], nulls


def _count(name: str, values: Any) -> Studied:
    stored, rows, empty_lists = values.type, len(values), None
    if is_list(stored):
        empty_lists = int(pc.sum(pc.equal(pc.fill_null(pc.list_value_length(values), 0), 0)).as_py())
        values = pc.list_flatten(values)
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    distinct, counts = pc.value_counts(values.cast(pa.string()).drop_null()).flatten()
    return Studied(name, stored, rows, distinct, counts, empty_lists)


def _null_words(column: Studied) -> list[str]:
    words = column.values.filter(pc.is_in(pc.utf8_lower(column.values), pa.array(NULLS))).to_pylist()
    return [word for word in words if word.lower() in _CERTAIN or column.without(words).fits(_FLOAT)]


class Proposed(NamedTuple):
    """A column's line in the YAML, with a comment behind it where it is a guess."""

    name: str
    role: str
    kind: str | None = None
    separator: str | None = None
    note: str = ""
    makes: tuple[str, ...] = ()
    """The kinds of derived columns that are made of it."""


def propose(columns: Sequence[Studied], taken: str) -> list[Proposed]:
    """What each column seems to be; ``taken``: characters that cannot separate the elements of lists."""
    labels = [column.name for column in columns if _may_be_label(column)]
    outcomes = [name for name in labels if _OUTCOME.search(name)]
    found = []
    for column in columns:
        if column.name not in (outcomes or labels[:1]):
            found.append(_feature(column, taken))
            continue
        note = "guess: it holds 0 and 1 alone" * (len(outcomes) != 1)
        if column.missing:
            note = f"{percent(column.missing)} of the rows have none, and are rejected"
        found.append(Proposed(column.name, "label", note=note))
    return found


def _may_be_label(column: Studied) -> bool:
    if column.empty_lists is not None or not column.fits(r"[01](\.0*)?|true|false"):
        return False
    return _OUTCOME.search(column.name) is not None or (len(column.values) > 1 and not column.missing)


def _feature(column: Studied, taken: str) -> Proposed:
    """``taken``: characters that cannot separate the elements of lists."""
    name, num_values = column.name, len(column.values)
    is_whole = column.fits(_WHOLE)
    is_id = _IDENTIFIER.search(name) is not None
    if column.has("[\n\ufffd]"):
        return Proposed(name, "ignore", note="has line breaks, or bytes that are not UTF-8; clean it first")
    if num_values == 0 or (num_values == 1 and not column.missing):
        return Proposed(name, "ignore", note="guess: constant" if num_values else "guess: always missing")
    if content_of(column.stored) == TIME or column.fits(_MOMENT):
        makes = ("hour", "weekday") if column.has(":") else ("weekday",)
        return Proposed(name, "time", "iso", note="guess", makes=makes)
    if column.empty_lists is not None:
        return Proposed(name, "sparse", "integer" if is_whole else "string", "|")
    if num_values == column.present >= _FEW_ROWS and (is_whole or not column.fits(_FLOAT)):
        return Proposed(name, "ignore", note="guess: no value comes twice, so it names the row")
    if column.fits("[0-9a-f]{8}") and column.has("[a-fA-F]|^0"):
        return Proposed(name, "sparse", "hex")
    if is_whole and (is_id or _looks_like_ids(column)):
        return Proposed(name, "sparse", "integer", note="guess: dense if it is an amount")
    if is_whole:
        return Proposed(name, "dense", "integer", note="guess: sparse if it is an id or a code")
    if is_id and column.fits(rf"{_WHOLE}(\.0*)?"):
        note = "guess: ids stored as floats; write them without the point, 1018.0 and 1018 are two strings"
        return Proposed(name, "sparse", "string", note=note)
    if column.fits(_FLOAT):
        return Proposed(name, "dense", "float")
    separator, kind = _separator(column, taken)
    return Proposed(name, "sparse", kind, separator, "guess: a list" * (separator is not None))


def _looks_like_ids(column: Studied) -> bool:
    """True for whole numbers that all have as many digits, or are mostly large."""
    sizes = pc.min_max(pc.utf8_length(column.values)).as_py()
    typical = pc.quantile(column.values.cast(pa.float64()), 0.5)[0].as_py()
    return bool(sizes["min"] == sizes["max"] >= _ID_DIGITS or typical >= _LARGE_ID)


def _separator(column: Studied, taken: str) -> tuple[str | None, str]:
    """(the separator of a column's lists or nothing, the kind of their elements)"""
    for mark in _SEPARATORS:
        if mark in taken or column.has(re.escape(mark)) < _LIST_SHARE:
            continue
        parts = pc.list_flatten(pc.split_pattern(column.values, mark)).unique()
        elements = replace(column, values=parts, counts=parts).without([])
        if elements.fits(_WHOLE):
            return mark, "integer"
        if mark != " " and 2 * len(elements.values) <= len(column.values):
            return mark, "string"
    return None, "string"


def as_yaml(
    name: str, origin: str, proposed: Sequence[Proposed], nulls: Sequence[str], marks: dict[str, Any]
) -> str:
    """The dataset's YAML."""
    roles = [each.role for each in proposed]
    lines = [
        f"# Proposed by dlrm-check from {origin}",
        *(f"{k}: {_flow(v)}" for k, v in {"name": name, **marks}.items()),
    ]
    lines += [f"null_values: {_flow(nulls)}  # guess: words that mean a missing value"] * bool(nulls)
    if roles.count("label") > 1:
        first = proposed[roles.index("label")].name
        lines.append(f"label: {_flow(first)}  # guess: the one to learn; the others are left out")
    lines += [f"# no {role} column was found" for role in ("label", "sparse") if role not in roles]
    lines.append("columns:")
    for each in proposed:
        entry = {
            key: getattr(each, key) for key in ("name", "role", "kind", "separator") if getattr(each, key)
        }
        lines.append(f"  - {_flow(entry)}" + f"  # {each.note}" * bool(each.note))
    made = [
        f"  - {_flow({'name': f'{each.name}_{kind}', 'kind': kind, 'of': each.name})}"
        for each in proposed
        for kind in each.makes
    ]
    return "\n".join([*lines, *["derived:"] * bool(made), *made, ""])


def _flow(value: Any) -> str:
    """``value`` as YAML writes it on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
