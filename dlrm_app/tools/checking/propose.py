"""Roles and kinds of the columns of a sampled log, by their names and values; and the dataset's YAML."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from dlrm_app.encoding.repeated_columns import repeated_column
from dlrm_app.evaluation.column_auc import auc_of, auc_of_ids
from dlrm_app.logs.parquet_columns import TIME, content_of, is_list
from dlrm_app.logs.read_spec import is_column_name
from dlrm_app.text import percent
from dlrm_app.tools.checking.sample import COMMA, FLOAT, Sample, SampledColumn, all_fit

_SEPARATORS = "|;, "
_OUTCOME = re.compile(
    r"y|label|target|click(ed)?|conver(t|ted|sion)|purchased?|bought|buy|order(ed)?|install(ed)?|liked?|follow(ed)?"
    r"|viewed?|watch(ed)?|play(ed)?|dwell|rating"
)
"""Words in the names of outcomes: what happened after the row was shown."""
_BEFORE = re.compile(
    r"last|prev(ious)?|past|hist(ory)?|recent|since|days|\d+|num|number|counts?|cnt|total|sum|avg|mean|rate|ratio"
    r"|ctr|cvr"
)
"""Words in the names of facts that were known before."""
_MOMENTS = re.compile(r"time|timestamp|ts|at|date|day|dt|hour|when|unix|epoch|created|updated")
_WEIGHT = re.compile(r"((sample|row|example|instance|importance)_?)?weight|importance", re.IGNORECASE)
_IDENTIFIER = re.compile(
    r"(?i:(^|_)(id|key|code|zip|hash|user|item|campaign|shop|device)s?(_|$))|[a-z]I[dD]$"
)
_DIGITS, _WHOLE = r"[+-]?\d+", r"[+-]?\d{1,18}"
_MOMENT = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?"
_COMPACT = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])([0-5]\d){0,2})?"
_SINCE_1970 = {"seconds": r"1\d{9}(\.\d*)?", "milliseconds": r"1\d{12}(\.\d*)?"}
"""Times from 2001 to 2033."""
_LABEL, _LABEL_WORDS = r"[01](\.0*)?|true|false", r"yes|no|[ynft]"
"""Labels as they are read, and words that also mean one or the other."""
_PAIRS = ({-1.0, 1.0}, {1.0, 2.0})
"""Pairs of numbers that other programs write for 0 and 1."""
_FEW_ROWS = 100
"""The least number of rows from which on it is not an accident if all values differ."""
_LEAK_AUC, _LEAK_ROWS = 0.9, 1000
"""A feature with at least this AUC alone may be known only after the click; the least rows to measure it."""
_ID_DIGITS, _LARGE_ID = 4, 1e5
_LIST_SHARE = 0.05
"""Values are read as lists if at least this share of them has a separator."""


class Proposed(NamedTuple):
    """A column's line in the YAML, with a comment after it if it is a guess."""

    name: str
    role: str
    kind: str | None = None
    separator: str | None = None
    brackets: str | None = None
    note: str = ""
    makes: tuple[str, ...] = ()
    """The kinds of columns to derive from it."""


def propose(sample: Sample) -> list[Proposed]:
    """Proposes a role and a kind for each column."""
    candidates = [column for column in sample.columns if _may_be_label(column)]
    labels = sorted(candidates, key=lambda column: not column.fits(_LABEL))
    labels = [column for column in labels if _is_outcome(column.name)] or labels[:1]
    is_sure = len(labels) == 1 and _is_outcome(labels[0].name)
    taken = f"{sample.marks.get('delimiter', '')}{sample.marks.get('quote') or ''}"
    found = [
        _label(column, is_sure) if column in labels else _feature(column, taken) for column in sample.columns
    ]
    found = _with_sources(found, sample.columns)
    clicked = next((_clicked(column) for column in labels if column.fits(_LABEL)), None)
    if clicked is None:
        return found
    return [
        _unless_leaking(each, column, *clicked) for each, column in zip(found, sample.columns, strict=True)
    ]


def _with_sources(found: Sequence[Proposed], columns: Sequence[SampledColumn]) -> list[Proposed]:
    """Adds a note to lists that have the values of another column: both should share one vocabulary."""
    numbers: dict[str, int] = {}

    def keys(counts: Mapping[str, int]) -> NDArray[np.uint64]:
        values = np.array([numbers.setdefault(text, len(numbers)) for text in counts], np.uint64)
        return np.repeat(values, [*counts.values()])

    with_notes = []
    for each, column in zip(found, columns, strict=True):
        if each.role == "sparse" and each.separator is not None:
            items = Counter[str]()
            for text, number in column.counts.items():
                for item in (
                    [text] if is_list(column.stored) else _elements(text, each.separator, each.brackets)
                ):
                    items[item] += number
            others = {
                other.name: keys(seen.counts)
                for other, seen in zip(found, columns, strict=True)
                if (other.role, other.kind, other.separator) == (each.role, each.kind, None)
            }
            if source := repeated_column(keys(items), others):
                note = f"its values are those of {source}: encoding=auto, or encoding.shared=[[{source},{each.name}]]"
                each = each._replace(note=note)
        with_notes.append(each)
    return with_notes


def _elements(text: str, separator: str, brackets: str | None) -> list[str]:
    if brackets is None:
        return text.split(separator)
    items = (item.strip(" \t") for item in text.strip(" \t")[1:-1].split(separator))
    return [item[1:-1] if re.fullmatch("'.*'|\".*\"", item) else item for item in items]


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def _is_outcome(name: str) -> bool:
    """True if ``name`` names an outcome of showing the row, and not how often it happened before."""
    words = _words_of(name)
    return any(map(_OUTCOME.fullmatch, words)) and not any(map(_BEFORE.fullmatch, words))


def _may_be_label(column: SampledColumn) -> bool:
    fits = column.fits(_LABEL) or column.fits(_LABEL_WORDS) or _is_pair(column)
    if is_list(column.stored) or not is_column_name(column.name) or not fits:
        return False
    return _is_outcome(column.name) or (len(column.counts) > 1 and not column.missing)


def _is_pair(column: SampledColumn) -> bool:
    """True if the values are two numbers that other programs write for 0 and 1."""
    return len(column.counts) == 2 and column.fits(FLOAT) and {*map(float, column.counts)} in _PAIRS


def _label(column: SampledColumn, is_sure: bool) -> Proposed:
    if not column.fits(_LABEL):
        words = " and ".join(sorted(column.counts))
        note = f"guess: the label, if its {words} are written as 0 and 1: then {{name: {column.name}, role: label}}"
        return Proposed(column.name, "ignore", note=note)
    note = "" if is_sure else "guess: it holds only 0 and 1"
    if column.missing:
        note = f"{percent(column.missing)} of the rows have none, and are rejected"
    return Proposed(column.name, "label", note=note)


def _clicked(label: SampledColumn) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(the numbers of the rows with a label, their labels)."""
    codes, values = label.codes()
    is_click = np.array([value.lower() == "true" or value[:1] == "1" for value in values], bool)
    rows = np.flatnonzero(codes >= 0)
    return rows, is_click[codes[rows]]


def _unless_leaking(
    proposed: Proposed, column: SampledColumn, rows: NDArray[np.int64], clicked: NDArray[np.bool_]
) -> Proposed:
    """``proposed``, or to ignore a feature that predicts the label too well: it may be known only afterwards."""
    if proposed.role in ("ignore", "label") or not column.texts or len(rows) < _LEAK_ROWS:
        return proposed
    codes, values = column.codes()
    codes = codes[rows]
    is_known = codes >= 0
    aucs = [auc_of_ids(codes + 1, clicked), auc_of(is_known.astype(np.float64), clicked)]
    if column.fits(FLOAT):
        numbers = np.array([float(value) if value in column.counts else 0.0 for value in values])
        aucs.append(
            auc_of(numbers[codes[is_known]], clicked[is_known]) if 2 * is_known.sum() > len(rows) else 0.5
        )
    best_auc = max(max(auc, 1 - auc) for auc in aucs if auc == auc)
    if best_auc < _LEAK_AUC:
        return proposed
    note = f"guess: alone it tells the label with AUC {best_auc:.2f}, so it may be known only afterwards"
    return Proposed(column.name, "ignore", note=note)


def _feature(column: SampledColumn, taken: str) -> Proposed:
    """Proposes how to read a feature. ``taken``: characters that cannot separate the elements of lists."""
    return _without_role(column) or _list(column, taken) or _single(column, taken)


def _without_role(column: SampledColumn) -> Proposed | None:
    """A column that is not a feature as it is: unusable, a time, an outcome or a weight; None for others."""
    name, num_values = column.name, len(column.counts)
    if not is_column_name(name):
        return Proposed(
            name, "ignore", note="its name is empty, holds / or begins with a dot; rename it to use it"
        )
    if column.has("[\n\ufffd]"):
        return Proposed(name, "ignore", note="has line breaks, or bytes that are not UTF-8; clean it first")
    if num_values == 0 or (num_values == 1 and not column.missing):
        return Proposed(name, "ignore", note="guess: constant" if num_values else "guess: always missing")
    if kind := _time_kind(column):
        is_hourly = kind != "iso" or column.has(":") or column.fits(r"\d{10,}")
        makes = ("hour", "weekday") if is_hourly else ("weekday",)
        return Proposed(name, "time", kind, note="guess", makes=makes)
    if _is_outcome(name) and not _IDENTIFIER.search(name) and not is_list(column.stored):
        return Proposed(
            name,
            "ignore",
            note="guess: an outcome, known only afterwards; give it a role if it is known before",
        )
    if _WEIGHT.fullmatch(name) and column.fits(FLOAT):
        return Proposed(
            name,
            "ignore",
            note="guess: if rows count by it, role: weight; if it is a feature, role: dense, kind: float",
        )
    return None


def _list(column: SampledColumn, taken: str) -> Proposed | None:
    """A column of lists, stored as such or in brackets, or of decimal commas that look like them; None for others."""
    name = column.name
    if is_list(column.stored):
        return Proposed(name, "sparse", "integer" if column.fits(_WHOLE) else "string", "|")
    if column.fits(COMMA) and column.has(","):
        note = "guess: decimal commas; write points for role: dense, kind: float"
        note += "; lists are role: sparse, kind: integer, separator: ','" * ("," not in taken)
        return Proposed(name, "ignore", note=note)
    if column.fits(r"\[.*\]") and taken != ",":  # commas within fields need quotes
        elements = {item for text in column.counts for item in _elements(text, ",", "[]")} - {""}
        if not all_fit(_WHOLE, elements) and all_fit(FLOAT, elements):
            return Proposed(
                name, "ignore", note="guess: numbers of another model; no role is for lists of them"
            )
        kind = "integer" if all_fit(_WHOLE, elements) else "string"
        return Proposed(name, "sparse", kind, ",", "[]", "guess: lists as Python writes them")
    return None


def _single(column: SampledColumn, taken: str) -> Proposed:
    """A column of single values, or of lists with a separator."""
    name, num_values = column.name, len(column.counts)
    is_whole, is_id = column.fits(_WHOLE), _IDENTIFIER.search(name) is not None
    if num_values == column.counts.total() >= _FEW_ROWS and (column.fits(_DIGITS) or not column.fits(FLOAT)):
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
    if column.fits(FLOAT) and not column.fits(_DIGITS):  # whole numbers of more digits are ids
        return Proposed(name, "dense", "float")
    separator, kind = _separator(column, taken)
    return Proposed(name, "sparse", kind, separator, note="guess: a list" * (separator is not None))


def _time_kind(column: SampledColumn) -> str | None:
    """The kind of a column of times; None if it holds none."""
    if is_list(column.stored):
        return None
    if content_of(column.stored) == TIME or column.fits(_MOMENT):
        return "iso"
    if column.fits(_COMPACT) and len({*map(len, column.counts)}) == 1:
        return "iso"
    kind = next((kind for kind, pattern in _SINCE_1970.items() if column.fits(pattern)), None)
    if kind is None:
        return None
    codes, values = column.codes()
    moments = np.array([float(value) if value in column.counts else 0.0 for value in values])[
        codes[codes >= 0]
    ]
    is_in_order = len(column.counts) > 1 and bool((np.diff(moments) >= 0).all())
    return kind if is_in_order or any(map(_MOMENTS.fullmatch, _words_of(column.name))) else None


def _look_like_ids(numbers: Iterable[str]) -> bool:
    """True for whole numbers that all have the same number of digits, or are mostly large."""
    sizes = {len(number) for number in numbers}
    return (len(sizes) == 1 and min(sizes) >= _ID_DIGITS) or statistics.median(
        map(float, numbers)
    ) >= _LARGE_ID


def _separator(column: SampledColumn, taken: str) -> tuple[str | None, str]:
    """Returns (the separator of a column's lists or None, the kind of their elements)."""
    for mark in _SEPARATORS:
        if mark in taken or column.has(re.escape(mark)) < _LIST_SHARE:
            continue
        elements = {part for value in column.counts for part in value.split(mark)} - {""}
        if all_fit(_WHOLE, elements):
            return mark, "integer"
        if mark != " " and 2 * len(elements) <= len(column.counts):
            return mark, "string"
    return None, "string"


def as_yaml(name: str, origin: str, proposed: Sequence[Proposed], sample: Sample) -> str:
    labels = [each.name for each in proposed if each.role == "label"]
    lines = [f"# Proposed by dlrm-check from {origin}"]
    lines += [f"{key}: {_flow(value)}" for key, value in {"name": name, **sample.marks}.items()]
    if sample.nulls:
        lines.append(f"null_values: {_flow(sample.nulls)}  # guess: words that mean a missing value")
    if len(labels) > 1:
        lines.append(f"label: {_flow(labels[0])}  # guess: the one to learn; the others are left out")
        lines.append(f"# labels: {_flow(labels)}  # in place of label: learns several, the main one first")
    roles = {each.role for each in proposed}
    lines += [f"# no {role} column was found" for role in ("label", "sparse") if role not in roles]
    lines.append("columns:")
    for each in proposed:
        entry = {key: value for key, value in zip(each._fields[:5], each, strict=False) if value is not None}
        lines.append(f"  - {_flow(entry)}" + f"  # {each.note}" * bool(each.note))
    made = [
        f"  - {_flow({'name': f'{each.name}_{kind}', 'kind': kind, 'of': each.name})}"
        for each in proposed
        for kind in each.makes
    ]
    return "\n".join([*lines, *["derived:"] * bool(made), *made, ""])


def _flow(value: object) -> str:
    """``value`` as YAML on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
