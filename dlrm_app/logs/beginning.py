"""Checks the beginning of a text file: mistakes that would affect every line are refused before any work.

Every command that reads raw text calls ``file_spec``.
"""

import re
from collections.abc import Sequence

from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.logs.labels import cure_of_lacking
from dlrm_app.logs.lines import locate
from dlrm_app.logs.parser import Parser
from dlrm_app.logs.rejects import RejectedLine
from dlrm_app.logs.sources.file_kinds import BYTE_ORDER_MARK
from dlrm_app.logs.sources.quoted_breaks import HIDDEN
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.text_units import beginning_of
from dlrm_app.logs.sources.units import Block
from dlrm_app.logs.spec import Cures, Spec
from dlrm_app.text import listed

_LINES = 1000
"""The number of first lines of which at least one must be good."""


def source_spec(source: InputFile, spec: Spec, labels: bool | None, cures: Cures) -> Spec:
    """``file_spec`` for a source."""
    units = beginning_of(source).items()  # keeps the file open
    text = next(units)
    return file_spec(source.path, text.load(), spec, labels, cures)


def file_spec(name: str, text: Block, spec: Spec, labels: bool | None, cures: Cures) -> Spec:
    """``spec`` for the file ``name``, which begins with ``text``: its columns in order, with or without the label.

    ``labels``: True if the label is read; None reads it if it exists.
    Raises ConfigError if lines could not be read correctly.
    """
    bare = spec.without_label()
    if text.start == text.stop:
        return bare if labels is False else spec
    if not spec.header:
        refuse_mark(name, text.text[text.start : text.start + 3].tobytes())
    names, behind = _first_fields(text, spec)
    if spec.header:
        if not {*names} & {column.name for column in spec.columns} and (odd := odd_first_line(names)):
            raise ConfigError(
                Problem(name, f"begins with {odd}, before its header", "leave it out: tail -n +2")
            )
        are_quoted = spec.quote is None and {f'"{column.name}"' for column in spec.columns} & {*names}
        cure = f"{cures.columns}, or {cures.no_header} if the first line is data"
        cure += cure_of_lacking(spec, names, labels, cures)
        spec = other = spec.in_columns(names, labels, name, cures.quote if are_quoted else cure)
        text = text._replace(start=behind)
    else:
        described = {column.name.casefold() for column in spec.columns}
        if 2 * len({name.strip().casefold() for name in names} & described) > len(spec.columns):
            raise ConfigError(Problem(name, "names the columns in its first line", cures.header))
        if labels is None:
            labels = len(names) != len(bare.columns)
        spec, other = (spec, bare) if labels else (bare, spec)
    count, rejects = _parse(text, spec, _LINES)
    if not count or len(rejects) < count:
        refuse_if(_quoted_values(name, text, spec, cures.quote))
        return spec
    if other != spec and not _parse(text, other, 1)[1]:
        rule, cure = "has a label in its first line", f"leave out {cures.unlabelled}"
        if labels:
            rule = "has one column too few"
            cure = f"if it has no {spec.label} column, add {cures.unlabelled}"
        raise ConfigError(Problem(name, rule, cure))
    first = [
        Problem(f"{name}:{each.line + 1 + spec.header}", f"is malformed: {each.reason}")
        for each in rejects[:3]
    ]
    rule = f"does not describe {name}, none of its first {count:,} lines fits"
    lacks_labels = labels and all(each.column == spec.label for each in rejects)
    cure = f"if the rows have no {spec.label}, add {cures.unlabelled}" if lacks_labels else cures.columns
    raise ConfigError(Problem(f"dataset={spec.name}", rule, cure), *first)


def _quoted_values(name: str, text: Block, spec: Spec, cure: str) -> list[Problem]:
    """A problem of columns of strings whose first values are all in quotes, which would be part of them."""
    if spec.quote is not None:
        return []
    beginning = text.text[text.start : text.stop].tobytes()
    rows = [line.rstrip(b"\r").split(spec.delimiter.encode()) for line in beginning.split(b"\n", _LINES)[:-1]]
    found = []
    for place, column in enumerate(spec.fields):
        if (column.role, column.kind) == ("sparse", "string"):
            values = [row[place] for row in rows if len(row) == len(spec.fields) and row[place]]
            if values and all(re.fullmatch(rb'".*"', value, re.DOTALL) for value in values):
                found.append(column.name)
    rule = f"has quotes around the values of {listed(found)}, and its description has none"
    return [Problem(name, rule, cure)] if found else []


def odd_first_line(fields: Sequence[str]) -> str | None:
    """Describes a first line whose ``fields`` are not a header: blank, a remark, Excel's sep=;. Otherwise None."""
    first = fields[0].strip()
    if not any(field.strip() for field in fields):
        return "a blank line"
    if re.fullmatch(r"sep=.?", first, re.IGNORECASE):
        return f"Excel's line {first}"
    return f"a remark, {first[:40]!r}" if re.match(r"#|//|--|%|;|REM ", first) else None


def refuse_mark(name: str, text: bytes) -> None:
    """Raises ConfigError if ``text``, the beginning of file ``name`` without a header, has a byte order mark."""
    if text.startswith(BYTE_ORDER_MARK):
        rule = "is text behind a byte order mark, which would be part of its first value"
        raise ConfigError(Problem(name, rule, "text must be UTF-8 without such a mark: tail -c +4"))


def _first_fields(text: Block, spec: Spec) -> tuple[list[str], int]:
    """The fields of the first line, without a byte order mark, and the position after the line."""
    array, at, fields = text.text, text.start, list[str]()
    at += len(BYTE_ORDER_MARK) * (array[at : at + 3].tobytes() == BYTE_ORDER_MARK)
    quote = spec.quote or ""
    while not fields or array[at - 1] != ord("\n"):
        first, behind, end, _ = locate(array, at, ord(spec.delimiter), ord(quote) if quote else -1)
        shown = array[first:behind].tobytes().replace(bytes([HIDDEN]), b"\n" if spec.quoting else b"\xff")
        field = shown.decode("utf-8", "backslashreplace")
        fields.append(field.replace(2 * quote, quote) if quote else field)
        at = end + 1
    return fields, at


def _parse(text: Block, spec: Spec, most: int) -> tuple[int, list[RejectedLine]]:
    """Returns (number of lines read, rejects among them)."""
    _, count, rejects = Parser(spec, most).parse(text.text, text.start, text.stop, most)
    return count, rejects
