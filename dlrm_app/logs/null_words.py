"""Null words, the texts of ``dataset.null_values``: finds the values of a column that they stand for.

Text and Parquet have the same rules.

Numbers, times and hex ids are compared by value: -1 stands for -1.0 too. Strings are compared by their bytes.
A label or a weight is never missing, so null words do not apply to them. A field that is not a value of its
column is compared by ``fields.is_null``.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.logs.codes import kind_code
from dlrm_app.logs.fields import (
    DENSE_INTEGER,
    ELEMENT_WEIGHT,
    KEY_HEX,
    KEY_INTEGER,
    KEY_STRING,
    KEY_WHOLE,
    LABEL,
    TIME_FORMAT,
    TIME_ISO,
    TIME_MICROSECONDS,
    TIME_MILLISECONDS,
    TIME_NANOSECONDS,
    TIME_SECONDS,
    UNITS,
    VECTOR,
    WEIGHT,
    parse_key,
    parse_number,
)
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.logs.strings import ABSENT, PRESENT

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)


@lru_cache(maxsize=4096)
def null_values(content: int, words: tuple[str, ...]) -> NDArray[np.uint64] | NDArray[np.float64]:
    """The values of a text column that ``words`` stand for: keys uint64 if it is sparse, otherwise float64.

    ``content``: the code of the column's content in ``fields``.
    """
    # a format's null words are compared as texts
    if content in (LABEL, WEIGHT, ELEMENT_WEIGHT, VECTOR, TIME_FORMAT):
        return np.zeros(0)
    if content in (KEY_INTEGER, DENSE_INTEGER):
        whole = _rounded(words, np.int64)
        return whole.view(np.uint64) if content == KEY_INTEGER else whole.astype(np.float64)
    is_key, found = content in (KEY_HEX, KEY_STRING, KEY_WHOLE), []
    for text in (np.frombuffer(word.encode(), np.uint8) for word in words):
        parsed = (
            parse_key(text, 0, len(text), content, -1)
            if is_key
            else parse_number(text, 0, len(text), content)
        )
        found += [parsed[0]] * (parsed[1] == PRESENT)
    return np.array(found, np.uint64) if is_key else np.array(found, np.float64)


def null_words_of(column: LogColumn, spec: Spec) -> tuple[str, ...]:
    """The null words of ``column``, without its padding, because padding is not an element."""
    if column.padding is None:
        return spec.null_values
    content, padding = kind_code(column), padding_key(column)
    return tuple(word for word in spec.null_values if padding not in null_values(content, (word,)))


def padding_key(column: LogColumn) -> np.uint64:
    """The key of the padding of ``column``."""
    return np.uint64(null_values(kind_code(column), (column.padding or "",))[0])


def null_lists(content: int, words: tuple[str, ...]) -> list[str]:
    """The words that stand for an empty list: all of them; for weights, only those that are not weights."""
    if content != ELEMENT_WEIGHT:
        return list(words)
    texts = {word: np.frombuffer(word.encode(), np.uint8) for word in words}
    return [word for word, text in texts.items() if parse_number(text, 0, len(text), content)[1] != PRESENT]


@lru_cache(maxsize=4096)
def null_numbers(
    content: int, words: tuple[str, ...], stored: pa.DataType, read_as: pa.DataType
) -> NDArray[np.number]:
    """The numbers that ``words`` stand for in a Parquet column of type ``stored``, which is read as ``read_as``.

    They are rounded as those of the file are: -0.1 as float32 is not the -0.1 of float64.
    """
    dtype: type[np.number] = read_as.to_pandas_dtype()
    if content in (LABEL, WEIGHT, ELEMENT_WEIGHT, VECTOR, TIME_ISO):
        return null_values(content, words).astype(dtype)
    numbers = _rounded(words, stored.to_pandas_dtype() if pa.types.is_floating(stored) else dtype)
    if content in (TIME_MILLISECONDS, TIME_MICROSECONDS, TIME_NANOSECONDS):
        return (numbers.astype(np.float64) / UNITS[content - TIME_SECONDS]).astype(dtype)
    return numbers.astype(dtype)


def _rounded(words: Sequence[str], dtype: type[np.number]) -> NDArray[np.number]:
    """The numbers among ``words``, rounded to ``dtype``. For whole numbers, those that ``dtype`` holds exactly."""
    numbers = [
        int(word) if _WHOLE.fullmatch(word) else float(word) for word in words if _NUMBER.fullmatch(word)
    ]
    if issubclass(dtype, np.floating):
        finite = [n for n in numbers if abs(n) <= float(np.finfo(dtype).max)]
        return np.array([*finite, *(float(word) for word in words if INFINITE.fullmatch(word))], dtype)
    assert issubclass(dtype, np.integer)
    limits = np.iinfo(dtype)
    return np.array([int(n) for n in numbers if limits.min <= n <= limits.max and n == int(n)], dtype)


@njit(nogil=True, cache=True)
def set_missing(numbers, nulls, missing, values, states):  # type: ignore[no-untyped-def]  # compiled
    """Sets ``values`` [R] to ``missing`` where ``numbers`` [R], which may be the same array, are among ``nulls``.

    ``states``: [R] or [0].
    """
    for row in range(len(numbers)):
        for null in nulls:
            if numbers[row] == null:
                values[row] = missing
                if len(states) > 0:
                    states[row] = ABSENT
