"""Numbers, times and flags of an Arrow array → keys or numbers."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit, njit_uncounted
from dlrm_app.logs.arrow_texts import bits_of, has_no_value, set_absent
from dlrm_app.logs.fields import FLOAT32_LIMIT, LEAST_WEIGHT
from dlrm_app.logs.spec import ELEMENT_WEIGHTS, VECTOR, LogColumn
from dlrm_app.logs.strings import ABSENT, BAD, MISSING_KEY, PRESENT

_DAY = 86_400
_FIRST_DAY, _DAY_10000 = -719_162, 2_932_897
"""1 January of the years 1 and 10000, in days since 1970: Arrow and Python write no others."""
EXACT = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""Floats from here on stand for several whole numbers."""
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LARGEST = 2.0**63
_LARGEST_FLOAT = float(np.nextafter(FLOAT32_LIMIT, 0.0))
LIMITS = {
    "label": (0.0, 1.0),
    "weight": (0.0, _LARGEST_FLOAT),
    ELEMENT_WEIGHTS: (0.0, _LARGEST_FLOAT),
    VECTOR: (-_LARGEST_FLOAT, _LARGEST_FLOAT),
    "integer": (-LARGEST, LARGEST),
    "float": (-_LARGEST_FLOAT, _LARGEST_FLOAT),
    "score": (0.0, 1.0),
}
"""Kind of numbers → the least and the greatest; the others are times."""
LEAST = {"weight": LEAST_WEIGHT, ELEMENT_WEIGHTS: LEAST_WEIGHT}
"""Kind of numbers → the least above 0."""
_UNITS = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}


def numbers_and_nulls(array: pa.Array) -> tuple[NDArray[np.generic], NDArray[np.uint8], int]:
    """Returns (numbers, the bits of those that are not null or no bits, the place of the first bit)."""
    valid, values = array.buffers()
    kind = np.dtype(array.type.to_pandas_dtype())
    numbers = np.frombuffer(values, kind, len(array), array.offset * kind.itemsize)
    return numbers, bits_of(valid, array), array.offset


def is_text_of_digits(column: LogColumn, kind: pa.DataType) -> bool:
    """True for numbers that are read by their decimal text: decimals, and times such as 20261123."""
    return pa.types.is_decimal(kind) or (column.kind == "iso" and not pa.types.is_temporal(kind))


def digits_of(array: pa.Array) -> pa.Array:
    """The texts of numbers, times in UTC and flags; whole floats and decimals have no decimal point."""
    import pyarrow.compute as pc

    if pa.types.is_timestamp(array.type):
        array = array.view(pa.timestamp(array.type.unit))  # stored in UTC
    if pa.types.is_decimal(array.type):
        whole = pa.decimal256(76, max(array.type.scale, 0))
        texts = (array.cast(whole) if array.type.scale < 0 else array).cast(pa.string())
        if pc.any(pc.match_substring(texts, "E")).as_py():  # Arrow writes 1E-7 for small ones
            plain = (None if text is None else f"{Decimal(text):f}" for text in texts.to_pylist())
            texts = pa.array(plain, pa.string())
        return pc.replace_substring_regex(texts, r"\.0*$|(\.\d*[1-9])0+$", r"\1")
    if not pa.types.is_floating(array.type):
        return array.cast(pa.string())
    if pa.types.is_float16(array.type):  # Arrow has no floor of these
        array = array.cast(pa.float32())
    is_whole = pc.and_(pc.equal(pc.floor(array), array), pc.less(pc.abs(array), LARGEST))
    whole = pc.if_else(is_whole, array, None).cast(pa.int64(), safe=False).cast(pa.string())
    texts = pc.if_else(pc.fill_null(is_whole, False), whole, array.cast(pa.string()))
    return pc.if_else(pc.is_null(array, nan_is_null=True), None, texts)


_PLAIN_NUMBERS = (pa.int64(), pa.float64(), pa.int32(), pa.uint64())


def are_rounded(array: pa.Array) -> NDArray[np.bool_]:
    """True for each float that is not a whole number, or too large to stand for a single one; False for null and NaN."""
    numbers, nulls, first = numbers_and_nulls(array)
    with np.errstate(invalid="ignore"):
        is_bad = (np.abs(numbers) >= EXACT[array.type]) | (np.floor(numbers) != numbers)
    is_bad &= numbers == numbers
    if len(nulls):
        is_bad &= np.unpackbits(nulls, bitorder="little")[first : first + len(numbers)].astype(np.bool_)
    return is_bad


def is_beyond_years(array: pa.Array) -> NDArray[np.bool_] | None:
    """True for each date or time outside of the years 1 to 9999, such as infinity of Postgres; None if there is none."""
    kind = array.type
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)) or getattr(kind, "unit", None) == "ns":
        return None
    numbers, nulls, first = numbers_and_nulls(
        array.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    )
    ticks = 1 if pa.types.is_date32(kind) else _DAY * _TICKS["ms" if pa.types.is_date64(kind) else kind.unit]
    whole = numbers.astype(np.int64, copy=False)
    is_beyond: NDArray[np.bool_] = (whole < _FIRST_DAY * ticks) | (whole >= _DAY_10000 * ticks)
    if len(nulls):
        is_beyond &= np.unpackbits(nulls, bitorder="little")[first : first + len(numbers)].astype(np.bool_)
    return is_beyond if is_beyond.any() else None


def numeric(array: pa.Array, column: LogColumn) -> pa.Array:
    """Numbers of 32 or 64 bits. Times are days in sparse columns and seconds in others, in UTC; flags 0 and 1."""
    kind, is_sparse = array.type, column.role == "sparse"
    if kind in _PLAIN_NUMBERS and column.kind not in _UNITS:
        return array
    import pyarrow.compute as pc

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # stored in UTC; with the time zone, its days would be local
        kind = pa.timestamp(kind.unit)
        array = array.view(kind)
    if pa.types.is_timestamp(kind) and not is_sparse:
        return pc.divide(array.cast(pa.int64()).cast(pa.float64(), safe=False), float(_TICKS[kind.unit]))
    if pa.types.is_temporal(kind):
        days = array.cast(pa.date32(), safe=False).cast(pa.int32())
        return days if is_sparse else pc.multiply(days.cast(pa.float64()), float(_DAY))
    if column.kind in _UNITS:
        return pc.divide(array.cast(pa.float64(), safe=False), _UNITS[column.kind])
    return array.cast(pa.float64() if pa.types.is_floating(kind) else pa.int64())


@njit(nogil=True, cache=True)
def convert_numbers(  # type: ignore[no-untyped-def]  # compiled
    numbers, nulls, first, is_float, is_whole, limits, values, states
):
    low, least, high = limits
    for row in range(len(values)):  # without branches, so it is vectorised
        number = numbers[row]
        value = np.float64(number)
        is_good = (low <= value) & (value <= high) & ((value == 0.0) | (least <= abs(value)))
        is_good &= (not is_whole) | _is_whole(number, is_float, LARGEST)
        values[row] = value
        states[row] = np.uint8(BAD) * np.uint8(not is_good)
        states[row] = np.uint8(ABSENT) if value != value else states[row]
    set_absent(nulls, first, np.nan, values, states)


@njit(nogil=True, cache=True)
def convert_keys(numbers, nulls, first, is_float, limit, keys, states):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(keys)):
        number = numbers[row]
        if has_no_value(nulls, first + row) or number != number:
            keys[row], states[row] = MISSING_KEY, ABSENT
        else:
            keys[row] = np.uint64(np.int64(number))
            states[row] = PRESENT if _is_whole(number, is_float, limit) else BAD


@njit_uncounted
def _is_whole(number, is_float, limit):  # type: ignore[no-untyped-def]  # compiled
    """True for a whole number within ±(2^63 - 1); for a float, below ``limit``."""
    if is_float:
        return abs(number) < limit and np.floor(number) == number
    whole = np.int64(number)
    return np.uint64(whole) != MISSING_KEY and (whole < 0) == (number < 0)


@njit(nogil=True, cache=True)
def spread_distinct(  # type: ignore[no-untyped-def]  # compiled
    distinct, distinct_states, distinct_spans, indices, nulls, first, missing, values, states, spans
):
    if nulls.size == 0:
        for row in range(len(values)):
            values[row] = distinct[np.uint32(indices[row])]
    else:
        for row in range(len(values)):
            is_null = has_no_value(nulls, first + row)
            values[row] = missing if is_null else distinct[np.uint32(indices[row])]
    others = len(spans)
    for state in distinct_states:
        others |= state
    for row in range(len(values)):
        states[row] = ABSENT if has_no_value(nulls, first + row) else PRESENT
        if others and states[row] == PRESENT:
            index = indices[row]
            states[row] = distinct_states[index]
            if len(spans) > 0:
                spans[row, 0], spans[row, 1] = distinct_spans[index, 0], distinct_spans[index, 1]
