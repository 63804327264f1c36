"""Notations of values that look like something else: a table of rules.

Each rule reads a column and returns a note, which says why its values cannot be read and what to write, or None.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable

import pyarrow as pa

from dlrm_app.logs.parquet_columns import is_list
from dlrm_app.tools.checking.sample import SampledColumn
from dlrm_app.tools.checking.text_form import FLOAT, all_fit

_SCIENTIFIC = r"\d(\.\d+)?[eE]\+?(\d+)"
_DIGITS_LOST, _EXACT = 9, 2.0**53
"""The least power of ten of ids whose digits are lost, and the largest whole number that float64 holds exactly."""
_CURRENCY = (
    r"USD|EUR|GBP|JPY|CNY|RMB|INR|Rs\.?|CHF|Fr\.|SEK|NOK|DKK|kr\.?|PLN|zł|CZK|Kč|HUF|Ft|RUB|руб\.?|BRL|TRY|TL|KRW|AUD|CAD"
    r"|NZD|SGD|HKD|TWD|MXN|ZAR|ILS|THB|IDR|Rp\.?|VND|PHP|UAH|AED|SAR|EGP|NGN|KES|CLP|COP|PEN|ARS|RON|BGN|ISK|PKR|BDT|LKR"
)
_GROUPED = re.compile(
    r"\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+(,\d+)?|\d{1,3}([ '’]\d{3})+([.,]\d+)?|\d{1,2}(,\d\d)+,\d{3}(\.\d+)?"
)
_SINGLE = re.compile(r"\d+[.,]?|\d*[.,]\d+")
_THOUSANDS = r"[1-9]\d{0,2}(\.\d{3})*|0"
_LIKE_LISTS = r"\d{3}([, .'’]\d{3})*"
_MANY = 20
"""From so many different numbers on, it is not by chance that all have three decimals."""


def first_note(column: SampledColumn) -> str | None:
    """The note of the first rule that holds for ``column``; None if its values are what they look like."""
    if not column.counts:
        return None
    return next((note for rule in _RULES if (note := rule(column)) is not None), None)


def have_lost_digits(numbers: Iterable[str]) -> bool:
    """True if ``numbers`` are ids as spreadsheets write long ones: 1.47938E+18."""
    values = [*numbers]
    found = [re.fullmatch(_SCIENTIFIC, value) for value in values]
    lost = [match for match in found if match and int(match[2]) >= _DIGITS_LOST]
    return 2 * len(lost) >= len(values) and all_fit(rf"\d+|{_SCIENTIFIC}", values)


def _lost_digits(column: SampledColumn) -> str | None:
    if pa.types.is_floating(column.stored):
        is_lost = column.fits(r"[+-]?\d+") and max(map(abs, map(float, column.counts))) >= _EXACT
    else:
        is_lost = not is_number_type(column) and have_lost_digits(column.counts)
    return (
        None
        if not is_lost
        else "ids in scientific notation or as floats, whose last digits are lost; write all digits, for kind: string"
    )


def is_number_type(column: SampledColumn) -> bool:
    """True if the values are stored as numbers."""
    kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_decimal)
    return any(is_kind(column.stored) for is_kind in kinds)


def _amounts(column: SampledColumn) -> str | None:
    """Numbers with other marks than digits and a point: $1,234.50, 1.234,50 €, 45%."""
    if is_number_type(column):
        return None
    parsed = [_without_signs(value) for value in column.counts]
    numbers, signs = [number for number, _ in parsed], {sign for _, sign in parsed} - {""}
    if not all(_GROUPED.fullmatch(number) or _SINGLE.fullmatch(number) for number in numbers):
        return None
    grouped = [number for number in numbers if _GROUPED.fullmatch(number)]
    if column.fits(FLOAT):  # 1.250 may have three decimals
        is_amount = column.fits(_THOUSANDS) and 0 < len(grouped) < len(numbers) >= _MANY
    else:
        is_amount = bool(signs) or (bool(grouped) and not all_fit(_LIKE_LISTS, numbers))
    if not is_amount:
        return None
    what = (
        "percentages" if "%" in signs else "amounts of money" if signs else "numbers with marks of thousands"
    )
    example = max(column.counts, key=len)
    return f"{what} such as {example[:24]!r}, which no key reads; write 1234.5 for role: dense, kind: float"


def _without_signs(value: str) -> tuple[str, str]:
    """(the number, its sign: % or $ or none) of an amount; the number is empty if it has other marks."""
    text = unicodedata.normalize("NFKC", value).replace("\u2212", "-")
    symbols = {mark for mark in text if unicodedata.category(mark) == "Sc"}
    sign = "%" if re.search("[%‰]", text) else "$" * bool(symbols)
    text = text.translate(dict.fromkeys(map(ord, symbols | {*"%‰"})))
    code = r"[^\W\d]{1,3}" if symbols else _CURRENCY
    form = rf"\s*\(?[+-]?\s*((?:{code})(?:\s*|(?=\d+[.,]\d)))?[+-]?([\d.,' ’]*[\d.,])\s*-?(\s?(?:{code}))?\s*\)?\s*"
    found = re.fullmatch(form, text, re.ASCII) if text.isascii() else re.fullmatch(form, text)
    if found is None:
        return "", ""
    has_code = (found[1] or found[3]) and (re.search(r"[\s.,]", value) is not None)
    return found[2], sign or "$" * bool(has_code)


def _nested(column: SampledColumn) -> str | None:
    if not column.fits(r"\s*[\[({].*[\])}]\s*") or not column.has(r"^\s*[\[({].+"):
        return None
    if column.has(r"^\s*\[\s*[\[({]") or column.has(r"^\s*\{[^{}]*:\s*[\[{]"):
        return "lists within lists; write one list of ids, or a column for each part"
    if column.fits(r"""\s*\{\s*("[^"]*"|'[^']*')\s*:.*\}\s*|\s*\{\s*\}\s*"""):
        return "objects of JSON; write a column for each key"
    return None


def _left_out(column: SampledColumn) -> str | None:
    if not column.fits(r"(?s:\s*\[.*\]\s*)") or not column.has(r"[\s\[]\.\.\.[\s\]]|…"):
        return None
    return "lists that NumPy cut (...), so elements are lost; write them whole: json.dumps(list), or Parquet"


_RULES: tuple[Callable[[SampledColumn], str | None], ...] = (
    lambda column: None if is_list(column.stored) else _left_out(column),
    lambda column: None if is_list(column.stored) else _nested(column),
    _lost_digits,
    lambda column: None if is_list(column.stored) else _amounts(column),
)
