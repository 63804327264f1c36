"""The form of a text without a description: delimiter, quote and header; forms that are not read, by name."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.logs.beginning import odd_first_line
from dlrm_app.logs.rejects import LIKELY_NULLS
from dlrm_app.text import listed

_LINES = 200
"""Lines that are used to find the header, and the delimiter where one alone fits."""
_DELIMITERS = "\t\x01;,|"  # ; before , because it occurs with decimal commas
FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
COMMA = r"[+-]?\d+(,\d+)?"  # numbers with decimal commas, or whole ones
_VALUE = rf"{FLOAT}|{COMMA}|true|false|[0-9a-f]{{8}}|"
"""Texts that cannot be the name of a column."""
_MOSTLY = 0.9
"""The share of lines that have equally many fields in a table."""
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"


class TextForm(NamedTuple):
    """The form of a text; ``records``: the fields of its records, without the header."""

    delimiter: str
    quote: str | None
    header: bool
    names: list[str]
    records: list[list[str]]


def all_fit(pattern: str, values: Iterable[str]) -> bool:
    """True if there are values and all of them match ``pattern``."""
    fits = re.compile(pattern, re.ASCII | re.IGNORECASE).fullmatch
    return any(True for _ in values) and all(map(fits, values))


def form_of(path: str, lines: Sequence[str], others: Sequence[str]) -> TextForm:
    """The form of the text with ``lines``, and of ``others`` of other files. Raises ConfigError for unread ones."""
    refuse_if(_odd_lines(path, lines))
    found, every_line = _fitting(lines[:_LINES], path), [*lines, *others]
    delimiter = found[0] if len(found) == 1 else max(found, key=lambda each: _fit(every_line, each)[0])
    quote = _quote(every_line, re.escape(delimiter))
    top = list(fields_of(lines[:_LINES], delimiter, quote))
    refuse_if(odd_fields(path, lines, delimiter))
    header = _is_header(top)
    names = top[0] if header else [f"column_{place}" for place in range(len(top[0]))]
    refuse_if(_odd_header(path, lines, names) if header else [])
    refuse_twice(path, names)
    return TextForm(delimiter, quote, header, names, list(fields_of(lines, delimiter, quote))[header:])


def refuse_twice(path: str, names: Sequence[str]) -> None:
    """Raises ConfigError if two columns have one name. Those without a name are left out anyway."""
    twice = [name for name, times in Counter(names).items() if times > 1 and name]
    refuse_if([Problem(str(path), f"names {name} twice", "rename one") for name in twice])


class _LineForm(NamedTuple):
    """A form of lines that is not a table. ``pattern`` fits all lines, ``telling`` most of them."""

    pattern: str
    telling: str
    rule: str
    cure: str


_LINE_FORMS = (
    _LineForm(
        rf"{_NUMBER}(,{_NUMBER})*(\s+(qid:\d+|\d+:\d+:{_NUMBER}))*\s*(#.*)?",
        r".*\s\d+:\d+:",
        "has libffm's lines, a label and field:feature:value",
        "write a table with a column for each field",
    ),
    _LineForm(
        rf"{_NUMBER}(,{_NUMBER})*(\s+(qid:\d+|\d+:{_NUMBER}))*\s*(#.*)?",
        r".*\s\d+:",
        "has libsvm's lines, a label and feature:value",
        "write a label and one list of them, as sed -E 's/[ \\t]+$//; s/[ \\t]+/,/; s/[ \\t]+/|/g' does, "
        "and check that: separator: '|' and weights: ':' read it",
    ),
    _LineForm(
        rf"({_NUMBER}(\s+{_NUMBER}){{0,2}})?\s*('?[^\s|]*)?(\|[^\s|]*(\s+[^\s|]+)*\s*)+",
        r"[^|]*(^|\s|')[^|]*\|[^\s|]*\s+[^\s|]+",
        "has the lines of Vowpal Wabbit, a label and |namespace features",
        "write a table with a column for each namespace, its features as a list with a separator such as ;",
    ),
)


def _odd_lines(path: str, lines: Sequence[str]) -> list[Problem]:
    """A problem of the form of all lines."""
    top = [line for line in lines[:_LINES] if line.strip()]
    if not top:
        return []
    if "\r" in top[0].rstrip("\r"):
        return [Problem(path, "ends its lines in CR alone", "write LF, as tr '\\r' '\\n' does")]
    # its fields may be as many as the header's
    if (odd := odd_first_line([lines[0]])) and "sep=" in odd.lower():
        return [Problem(path, f"begins with {odd}, before its header", "leave it out: tail -n +2")]
    for form in _LINE_FORMS:
        telling = sum(re.match(form.telling, line) is not None for line in top)
        if 2 * telling > len(top) and all(re.fullmatch(form.pattern, line, re.ASCII) for line in top):
            return [Problem(path, form.rule, form.cure)]
    return []


def odd_fields(path: str, lines: Sequence[str], delimiter: str) -> list[Problem]:
    """A problem of fields that hold the delimiter, or quotes, in a way that is not read."""
    mark = re.escape(delimiter)
    start, end = rf"(?:^|{mark})\s*", rf"\s*(?={mark}|$)"
    brackets = rf"\[[^\]]*?{mark}.*?\]|{{[^}}]*?{mark}.*?}}|\([\d\s.+-]*{mark}[\d\s.,+-]*\)"
    unquoted = re.compile(f"{start}({brackets}){end}")
    escaped = re.compile(rf'{start}"(?:[^"\\]|\\.|"")*?\\"(?:[^"\\]|\\.)+"{end}')
    for number, line in enumerate(lines, 1):
        found = unquoted.search(line) if re.search(r"[\[{(]", line) else None
        if found and line.count('"', 0, found.start(1)) % 2 == 0:
            rule = f"has {delimiter!r} within brackets in line {number}, {found[1][:40]}, and it delimits columns"
            return [Problem(path, rule, 'write such fields in quotes, "[1,7]", or delimit columns by a tab')]
        if '\\"' in line and escaped.search(line):
            rule = f'writes a quote within quotes as \\" in line {number}, as MySQL does'
            return [Problem(path, rule, """double it: sed 's/\\\\"/""/g', or FIELDS ESCAPED BY '"'""")]
    return []


def _odd_header(path: str, lines: Sequence[str], names: Sequence[str]) -> list[Problem]:
    first = lines[0].rstrip("\r")
    if any("\ufffd" in name for name in names):
        return [Problem(path, "has names of columns that are not UTF-8 in its header", NOT_UTF8)]
    if again := [number for number, line in enumerate(lines[1:], 2) if line.rstrip("\r") == first]:
        rule = f"has its header again in line {listed(again)}, as files that were put together"
        return [Problem(path, rule, "leave it out: awk 'NR == 1 { h = $0 } NR == 1 || $0 != h'")]
    return []


NOT_UTF8 = "write UTF-8, as iconv -f cp1252 -t UTF-8 does for text of Windows"


def fields_of(lines: Sequence[str], delimiter: str, quote: str | None) -> Iterator[list[str]]:
    """The fields of each record, up to a quote that is never closed."""
    kind: Any = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
    ended = (f"{line}\n" for line in lines)
    with suppress(csv.Error):
        yield from csv.reader(ended, delimiter=delimiter, quotechar=quote, quoting=kind)


def _fitting(lines: Sequence[str], path: str) -> list[str]:
    """The delimiters with which most lines have equally many fields, the likeliest first."""
    fits = {delimiter: _fit(lines, delimiter) for delimiter in _DELIMITERS}
    found = [delimiter for delimiter in _DELIMITERS if len((fits[delimiter][1] or [[]])[0]) > 1]
    found.sort(key=lambda delimiter: -fits[delimiter][0])
    if not found or fits[found[0]][0] < _MOSTLY:
        refuse_if(odd_fields(path, lines, found[0]) if found else [])
        tables = {each: rows for each, (_, rows) in fits.items()}
        refuse_if(_unnamed_field(path, tables) or _before_the_table(path, lines, tables))
    if not found and all("::" in line for line in lines):
        raise ConfigError(
            Problem(path, "separates its fields by two characters, ::", "write one, as sed 's/::/\\t/g' does")
        )
    if not found:
        shown = ", ".join(map(repr, _DELIMITERS))
        raise ConfigError(Problem(path, f"has one column in its first line by any of the delimiters {shown}"))
    return found


def _fit(lines: Sequence[str], delimiter: str) -> tuple[float, list[list[str]]]:
    """(the share of records with as many fields as the first, in tenths; the records)."""
    rows = list(fields_of(lines, delimiter, _quote(lines, re.escape(delimiter))))
    return round(sum(len(row) == len(rows[0]) for row in rows) / max(len(rows), 1), 1), rows


def _quote(lines: Sequence[str], mark: str) -> str | None:
    """The quote around fields: one that opens some and, where it closes them, mostly at their end; an apostrophe only
    where it closes a field that holds the delimiter.
    """
    opened = [line for line in lines if '"' in line and re.search(rf'(^|{mark})"', line)]
    broken = re.compile(rf'(^|{mark})"([^"]|"")*"(?!"|{mark}|$)')
    if opened and 2 * sum(map(bool, map(broken.search, opened))) <= len(opened):
        return '"'
    closed = re.compile(rf"(^|{mark})'[^']*{mark}[^']*'($|{mark})")
    return "'" if sum(map(bool, map(closed.search, lines))) > len(lines) / 2 else None


def _unnamed_field(path: str, tables: Mapping[str, list[list[str]]]) -> list[Problem]:
    """A problem if rows have one field more than their header: an empty last one, or names of rows in front."""
    for delimiter, rows in tables.items():
        longer = [row for row in rows[1:] if len(row) == len(rows[0]) + 1]
        if len(longer) < max(_MOSTLY * (len(rows) - 1), 1) or len(rows[0]) < 2 or _is_header(longer):
            continue
        if not _is_header([rows[0], *(row[: len(rows[0])] for row in longer), *(row[1:] for row in longer)]):
            continue
        if not any(row[-1] for row in longer):
            rule = f"ends its rows, but not its header, with a delimiter {delimiter!r}"
            return [Problem(path, rule, f"write one behind the header too: sed '1s/$/{_in_sed(delimiter)}/'")]
        rule = "has one field more in its rows than in its header, as R writes names of rows in front"
        cure = f"leave them out (row.names = FALSE), or name them: sed '1s/^/row{_in_sed(delimiter)}/'"
        return [Problem(path, rule, cure)]
    return []


def _in_sed(delimiter: str) -> str:
    return {"\t": "\\t", "\x01": "\\x01"}.get(delimiter, delimiter)


def _before_the_table(
    path: str, lines: Sequence[str], tables: Mapping[str, list[list[str]]]
) -> list[Problem]:
    """A problem if the first lines have other fields than all that follow, by the delimiter that fits best."""
    best = (0.0, 0)
    for rows in tables.values():
        sizes = [len(row) for row in rows]
        size, times = (
            Counter(size for size in sizes if size > 1).most_common(1)[0] if max(sizes) > 1 else (0, 0)
        )
        if times > 1 and times / (len(sizes) - sizes.index(size)) >= _MOSTLY:
            best = max(best, (times / len(sizes), sizes.index(size)))
    if not (number := best[1]):
        return []
    first = lines[0].strip()
    shown = odd_first_line([first]) or f"a line that is no part of the table, {first[:40]!r}"
    return [Problem(path, f"begins with {shown}, before its header", f"leave it out: tail -n +{number + 1}")]


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """True if no field of the first line could be a value, and none occurs again in its column.

    The first field may be empty, as pandas writes it. Other fields may be empty, or numbers, if most are names, and
    one of these is above a column of numbers.
    """
    others = [row for row in rows[1:] if row != rows[0]]  # a header that comes again is named later
    columns = [[row[place] for row in others if place < len(row)] for place in range(len(rows[0]))]
    again = [field in values for field, values in zip(rows[0], columns, strict=True)]
    first, *rest = rows[0]
    if not any(again) and not any(all_fit(_VALUE, [field]) for field in [first or rest[0], *rest]):
        return True
    is_name = [
        re.match(r"[^\W\d]", field) is not None
        and not all_fit(_VALUE, [field])
        and field.lower() not in LIKELY_NULLS
        for field in rows[0]
    ]
    if 2 * sum(is_name) < len(is_name) or any(map(all, zip(is_name, again, strict=True))):
        return False
    numbers = [all_fit(FLOAT, [value for value in values if value]) for values in columns]
    return any(map(all, zip(is_name, numbers, strict=True)))
