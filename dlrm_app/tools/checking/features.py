"""Proposes how to read a column that is not a label: its role and kind, by its name and its values."""

import math
import re
import statistics
from collections.abc import Collection, Iterable

from dlrm_app.logs.parquet_columns import TEXT, content_of, is_list
from dlrm_app.logs.read_spec import is_column_name
from dlrm_app.tools.checking.description import Proposed
from dlrm_app.tools.checking.lists import WHOLE, ListForm, elements_of, find_separator, weight_mark
from dlrm_app.tools.checking.notations import first_note, have_lost_digits
from dlrm_app.tools.checking.sample import BLANKS, Sample, SampledColumn, words_of
from dlrm_app.tools.checking.text_form import COMMA, FLOAT, NOT_UTF8, all_fit
from dlrm_app.tools.checking.time_formats import formats_of, has_clock, unread_times
from dlrm_app.tools.checking.times import is_moment_name, time_kind, wrong_times

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
_RATING = re.compile(r"ratings?|stars?")
_WEIGHT = re.compile(r"((sample|row|example|instance|importance)_?)?weight|importance", re.IGNORECASE)
_IDENTIFIER = re.compile(
    r"(?i:(^|_)(id|key|code|zip|hash|user|item|campaign|shop|device)s?(_|$))|[a-z]I[dD]$"
)
_CODE = re.compile(
    r"zip|zipcode|postcode|postal|plz|ean|ean\d+|gtin|upc|isbn|barcode|iban|account|phone|msisdn|sku"
)
"""Words in the names of codes of digits, which begin with zeros in some rows."""
_DIGITS = r"[+-]?\d+"
_LEADING_ZERO = r"0\d+"
_FEW_ROWS = 100
"""The least number of rows from which on it is not an accident if all values differ."""
_ID_DIGITS, _LARGE_ID = 4, 1e5
_HEX_OF_DIGITS = 3
"""From so many values of eight hex digits on, some have letters."""
_MANY = 20
"""From so many codes on, it is not by chance that all have a right check digit."""


def is_outcome(name: str) -> bool:
    """True if ``name`` names an outcome of showing the row, and not how often it happened before."""
    words = words_of(name)
    return any(map(_OUTCOME.fullmatch, words)) and not any(map(_BEFORE.fullmatch, words))


def propose_feature(column: SampledColumn, sample: Sample, taken: str) -> Proposed:
    """Proposes how to read a feature. ``taken``: marks that cannot separate the elements of lists."""
    found = _without_role(column, sample) or _list(column, taken) or _single(column)
    is_text = found.role == "sparse" and found.kind != "integer" and found.separator is None
    if is_text and (example := _padded_example(column)):
        both = f"{example!r} and {example.strip(BLANKS)!r} are two ids"
        cure = f"write values without them: df['{found.name}'].str.strip() in pandas"
        return found._replace(note=f"guess: blanks around values count, {both}; {cure}")
    return found


def _padded_example(column: SampledColumn) -> str:
    """A text that occurs with outer blanks and without, as CHAR(n) and VARCHAR write it; empty if there is none."""
    if column.was_padded:
        return f" {next(iter(column.counts))}"
    padded = (text for text in column.counts if text != text.strip(BLANKS))
    return next((text for text in padded if text.strip(BLANKS) in column.counts), "")


def _without_role(column: SampledColumn, sample: Sample) -> Proposed | None:
    """A column that is not a feature as it is: unusable, a time, an outcome or a weight; None for others."""
    name, num_values = column.name, len(column.counts)
    if not is_column_name(name):
        return Proposed(
            name,
            "ignore",
            note="its name is empty, too long, holds / or NUL, or begins with a dot; rename it to use it",
        )
    if column.has("\ufffd"):
        first = f", the first {sample.bad_byte}" * bool(sample.bad_byte)
        return Proposed(name, "ignore", note=f"has bytes that are not UTF-8{first}; {NOT_UTF8}")
    if num_values == 0 or (num_values == 1 and not column.missing):
        return Proposed(name, "ignore", note="guess: constant" if num_values else "guess: always missing")
    if note := wrong_times(column):
        return Proposed(name, "ignore", note=f"guess: {note}")
    if kind := time_kind(column):
        is_hourly = kind != "iso" or column.has(":") or column.fits(r"\d{10,}")
        makes = ("hour", "weekday") if is_hourly else ("weekday",)
        return Proposed(name, "time", kind, note="guess", makes=makes)
    if content_of(column.stored) == TEXT and (found := _formatted_time(column)):
        return found
    if is_outcome(name) and not _IDENTIFIER.search(name) and not is_list(column.stored):
        return Proposed(name, "ignore", note=f"guess: {_outcome_note(column)}")
    if _WEIGHT.fullmatch(name) and column.fits(FLOAT):
        return Proposed(
            name,
            "ignore",
            note="guess: if rows count by it, role: weight; if it is a feature, role: dense, kind: float",
        )
    if note := first_note(column):
        return Proposed(name, "ignore", note=f"guess: {note}")
    return None


def _formatted_time(column: SampledColumn) -> Proposed | None:
    """A time in a format of its own; None for others."""
    if unread_times(column.counts):
        note = "guess: times with names of days, or whole names of months, which no format reads"
        note += "; write 2026-11-23 17:09:08"
        return Proposed(column.name, "ignore", note=note)
    if not (forms := formats_of(column.counts, is_moment_name(column.name))):
        return None
    if len(forms) > 1:
        both = " or ".join(f'"{form}"' for form in forms)
        note = f"guess: times whose day and month are not told apart by any value; role: time, format: {both}"
        return Proposed(column.name, "ignore", note=note)
    makes = ("hour", "weekday") if has_clock(forms[0]) else ("weekday",)
    return Proposed(column.name, "time", format=forms[0], note="guess", makes=makes)


def _outcome_note(column: SampledColumn) -> str:
    if any(map(_RATING.fullmatch, words_of(column.name))) and column.fits(FLOAT) and len(column.counts) > 2:
        values = [float(value) for value in column.counts]
        least = math.ceil(min(values) + 0.75 * (max(values) - min(values)))
        return (
            f"a rating, known only afterwards; to learn it, write 0 and 1, as "
            f"df['label'] = (df['{column.name}'] >= {least}).astype(int) in pandas, and leave {column.name} out"
        )
    return "an outcome, known only afterwards; give it a role if it is known before"


def _list(column: SampledColumn, taken: str) -> Proposed | None:
    """A column of lists, stored as such or in brackets, or of decimal commas that look like them; None for others."""
    name = column.name
    if is_list(column.stored):
        if content_of(column.stored.value_type) != TEXT and not column.fits(WHOLE):
            return _numbers_of_a_model(name)
        return Proposed(name, "sparse", _kind_of(column.counts), "|")
    if column.fits(COMMA) and column.has(","):
        note = "guess: decimal commas; write points for role: dense, kind: float"
        note += "; lists are role: sparse, kind: integer, separator: ','" * ("," not in taken)
        return Proposed(name, "ignore", note=note)
    for brackets in ("[]", "()", "{}"):
        if column.fits(rf"(?s:\s*\{brackets[0]}.*\{brackets[1]}\s*)"):
            return _in_brackets(column, brackets, taken)
    return None if column.fits(FLOAT) else _separated(column, taken)


def _separated(column: SampledColumn, taken: str) -> Proposed | None:
    """A column of lists without brackets; None for others."""
    name = column.name
    if found := find_separator(column, taken):
        form, elements = found
        if have_lost_digits(elements):
            note = "guess: lists of ids in scientific notation, whose last digits are lost"
            return Proposed(name, "ignore", note=note)
        kind, note = _kind_of(elements), "guess: a list"
        return Proposed(name, "sparse", kind, form.separator, None, form.weights, note=note)
    other = find_separator(column, "")
    if other is not None and all_fit(WHOLE, other[1]):
        note = "guess: lists with the delimiter between elements; write another mark, for separator: '|'"
        return Proposed(name, "sparse", "string", note=note)
    return None


def _in_brackets(column: SampledColumn, brackets: str, taken: str) -> Proposed | None:
    """Lists as Python, JSON or NumPy write them; None if the brackets are part of texts."""
    is_numpy = not column.has(",") and column.has(r"[^\s\[]\s+[^\s\]]")
    separator = " " if is_numpy else ","
    if separator == taken:  # such fields need quotes, and there are none
        return None
    form = ListForm(separator, brackets)
    elements = {item for text in column.counts for item in elements_of(text, form)} - {""}
    weights = weight_mark(elements) if brackets != "{}" else None
    elements = {item.partition(weights)[0] for item in elements} if weights else elements
    if not all_fit(WHOLE, elements) and all_fit(FLOAT, elements):
        return _numbers_of_a_model(column.name)
    if brackets != "[]" and not (all_fit(WHOLE, elements) or 2 * len(elements) <= len(column.counts)):
        return None
    note = "guess: lists as NumPy writes them" if is_numpy else "guess: lists as Python writes them"
    return Proposed(column.name, "sparse", _kind_of(elements), separator, brackets, weights, note=note)


def _numbers_of_a_model(name: str) -> Proposed:
    return Proposed(name, "ignore", note="guess: numbers of another model; no role is for lists of them")


def _kind_of(elements: Collection[str]) -> str:
    """The kind of ids: whole numbers, unless these begin with zeros."""
    return "integer" if all_fit(WHOLE, elements) and not _have_leading_zeros(elements) else "string"


def _have_leading_zeros(values: Iterable[str]) -> bool:
    return any(re.fullmatch(_LEADING_ZERO, value, re.ASCII) for value in values)


def _single(column: SampledColumn) -> Proposed:
    name, num_values = column.name, len(column.counts)
    is_whole, is_id = column.fits(WHOLE), _IDENTIFIER.search(name) is not None
    if num_values == column.counts.total() >= _FEW_ROWS and (column.fits(_DIGITS) or not column.fits(FLOAT)):
        return Proposed(name, "ignore", note="guess: no value comes twice, so it names the row")
    is_code = content_of(column.stored) == TEXT and _is_code(column)
    if column.fits("[0-9a-f]{8}") and column.has("[a-fA-F]|^0") and not is_code:
        return Proposed(name, "sparse", "hex")
    if is_code:
        return Proposed(name, "sparse", "string", note="guess: a code, whose zeros in front count")
    if is_whole and (is_id or _look_like_ids(column.counts)):
        return Proposed(name, "sparse", "integer", note="guess: dense if it is an amount")
    if is_whole:
        return Proposed(name, "dense", "integer", note="guess: sparse if it is an id or a code")
    if column.fits(rf"{WHOLE}(\.0*)?") and (is_id or _look_like_ids(column.counts)):
        note = "guess: ids stored as floats; whole: 1018.0 is 1018"
        return Proposed(name, "sparse", "string", whole=True, note=note)
    if column.fits(FLOAT) and not column.fits(_DIGITS):  # whole numbers of more digits are ids
        return Proposed(name, "dense", "float")
    return Proposed(name, "sparse", "string")


def _is_code(column: SampledColumn) -> bool:
    """True for texts of digits that begin with zeros, or could: postcodes, EANs, account numbers."""
    if not column.fits(r"\d+"):
        return False
    is_hex = column.fits(".{8}") and len(column.counts) < _HEX_OF_DIGITS
    if _have_leading_zeros(column.counts):
        return not is_hex
    return any(map(_CODE.fullmatch, words_of(column.name))) or _are_eans(column.counts)


def _are_eans(values: Collection[str]) -> bool:
    """True if all ``values`` have the check digit of a GTIN."""
    if len(values) < _MANY or not all_fit(r"\d{8}|\d{12,14}", values):
        return False
    return all(
        sum(int(digit) * (1 + 2 * (place % 2)) for place, digit in enumerate(value[::-1])) % 10 == 0
        for value in values
    )


def _look_like_ids(numbers: Iterable[str]) -> bool:
    whole = [number.partition(".")[0] for number in numbers]
    sizes = {len(number) for number in whole}
    return (len(sizes) == 1 and min(sizes) >= _ID_DIGITS) or statistics.median(map(float, whole)) >= _LARGE_ID
