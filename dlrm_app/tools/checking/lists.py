"""Lists of a sampled column: how they are written, their elements by row, and what fills them up."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.logs.list_fields import NULLS_IN_BRACKETS
from dlrm_app.logs.parquet_columns import is_list
from dlrm_app.tools.checking.sample import BLANKS, CERTAIN_NULLS, SampledColumn
from dlrm_app.tools.checking.text_form import FLOAT, all_fit

WHOLE = r"[+-]?\d{1,18}"
_SEPARATORS = "\x02|;, "  # Hive's first
_LIST_SHARE = 0.05
"""Values are read as lists if at least this share of them has a separator."""
_WEIGHTED = rf"([^{{0}}]+){{0}}({FLOAT})"
_ROWS, _FILLED, _ENDS = 0.5, 0.05, 0.95
"""Lists are filled up if this share of them has one length, this share ends (or begins) with one value at least twice,
and this share of its occurrences lies there.
"""


class ListForm(NamedTuple):
    """How lists are written: the marks between and around elements, and before an element's weight."""

    separator: str
    brackets: str | None = None
    weights: str | None = None


class ListRows(NamedTuple):
    """The lists of all rows: numbers of ``values`` in one array, -1 where missing, and where each list begins."""

    codes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    values: list[str]

    def counts(self) -> Counter[str]:
        numbers = np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))
        return Counter(dict(zip(self.values, numbers.tolist(), strict=True)))


def elements_of(text: str, form: ListForm) -> list[str]:
    """The elements of a list as text, without brackets, quotes and weights; empty where they are missing."""
    if form.brackets is None:
        found = text.split(form.separator)
        found = [item.strip(BLANKS) for item in found] if form.separator != " " else found
        found = ["" if item.lower() in CERTAIN_NULLS else item for item in found]
    else:
        inside = text.strip()[1:-1]
        parts = inside.split() if form.separator == " " else inside.split(form.separator)
        items = ("" if item.strip() in NULLS_IN_BRACKETS else item.strip() for item in parts)
        found = [item[1:-1] if re.fullmatch("'.*'|\".*\"", item) else item for item in items]
    return found if form.weights is None else [item.partition(form.weights)[0] for item in found]


def rows_of(column: SampledColumn, form: ListForm) -> ListRows:
    """The lists of ``column``, which are written in ``form`` unless they are stored as lists."""
    codes, values = column.codes()
    if is_list(column.stored):
        lengths = np.concatenate([np.zeros(0, np.int64), *column.lengths])
        return ListRows(codes, np.concatenate([[0], np.cumsum(lengths)]), values)
    numbers: dict[str, int] = {}
    lists = [
        np.array(
            [numbers.setdefault(item, len(numbers)) if item else -1 for item in elements_of(text, form)],
            np.int64,
        )
        for text in values
    ]
    none = np.zeros(0, np.int64)
    chosen = [none if code < 0 else lists[code] for code in codes.tolist()]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in chosen])]).astype(np.int64)
    return ListRows(np.concatenate([none, *chosen]), offsets, [*numbers])


def find_separator(column: SampledColumn, taken: str) -> tuple[ListForm, set[str]] | None:
    """(how lists without brackets are written, their elements) if they are lists; ``taken``: marks that separate none."""
    for mark in _SEPARATORS:
        if mark in taken or column.has(re.escape(mark)) < _LIST_SHARE:
            continue
        parts = {item for value in column.counts for item in elements_of(value, ListForm(mark))} - {""}
        form = ListForm(mark, None, weight_mark(parts))
        elements = {item for value in column.counts for item in elements_of(value, form)} - {""}
        if all_fit(WHOLE, elements) or (mark != " " and 2 * len(elements) <= len(column.counts)):
            return form, elements
    return None


def weight_mark(elements: Iterable[str]) -> str | None:
    """``:``, or Hive's mark, if each element ends with it and a number: a weight, not an id of a few kinds."""
    found = re.search(r"[:\x03]", next(iter(elements := [*elements]), ""))
    mark = found[0] if found else ""
    pairs = [re.fullmatch(_WEIGHTED.format(mark), element, re.ASCII) for element in elements] if mark else []
    if not pairs or None in pairs:
        return None
    names, weights = ({pair[group] for pair in pairs if pair} for group in (1, 2))
    is_weight = all(float(weight) >= 0 for weight in weights) and (
        any("." in weight for weight in weights) or len(names) > len(weights)
    )
    return mark if is_weight else None


def padding_of(rows: ListRows) -> str | None:
    """The value that fills lists up to one length, at an end; None if none does."""
    lengths = np.diff(rows.offsets)
    some = lengths[lengths > 0]
    if not len(some):
        return None
    length = int(np.bincount(some).argmax())
    if length < 2 or np.count_nonzero(lengths == length) < max(_ROWS * len(some), 2):
        return None
    first = rows.offsets[:-1][lengths == length]
    lists = rows.codes[first[:, None] + np.arange(length)]  # [lists, length]
    for ordered in (lists, lists[:, ::-1]):
        ends = ordered[ordered[:, 0] >= 0, 0]
        if not len(ends):
            continue
        value = int(np.bincount(ends).argmax())
        is_value = ordered == value
        runs = np.cumprod(is_value, axis=1).sum(axis=1)
        is_filled = (runs > 1).mean() >= _FILLED and len(np.unique(runs)) > 2
        if is_filled and runs.sum() >= _ENDS * np.count_nonzero(rows.codes == value):
            return rows.values[value]
    return None
