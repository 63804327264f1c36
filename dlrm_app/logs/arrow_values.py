"""Values of a column of Arrow → numbers or keys, by the rules of ``fields`` for text.

A value is what its decimal text would be: an integer id and its digits are the same id. Whole numbers may come as
floats, which pandas makes of integers with nulls; NaN is missing. A timestamp is seconds since 1970 in a dense column
or a time, and days in a sparse column, both in UTC whatever its zone. Functions import pyarrow.compute themselves,
because it takes 0.04 s, and text does not need it.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.logs.arrow_columns import KeysOrNumbers, Reading, ReadValues
from dlrm_app.logs.arrow_numbers import (
    EXACT,
    LARGEST,
    LEAST,
    LIMITS,
    are_rounded,
    convert_keys,
    convert_numbers,
    digits_of,
    is_beyond_years,
    is_text_of_digits,
    numbers_and_nulls,
    numeric,
    spread_distinct,
)
from dlrm_app.logs.arrow_texts import fill_spans, parse_keys, parse_numbers, texts_of
from dlrm_app.logs.fields import FIRST_TIME, LAST_TIME
from dlrm_app.logs.null_words import null_numbers, null_values, set_missing
from dlrm_app.logs.parquet_columns import TEXTS
from dlrm_app.logs.rejects import rule_name
from dlrm_app.logs.strings import ABSENT, BAD, MISSING_KEY, PRESENT


class ArrowValues:
    """Reads values of the columns of one table. ``keeps_spans``: keeps the positions of strings in ``texts()``."""

    def __init__(self, keeps_spans: bool) -> None:
        self.keeps_spans = keeps_spans
        self._distinct: dict[tuple[str, int, int], tuple[pa.Array, ReadValues]] = {}
        """(column, address, offset) → (Arrow's dictionary, its values), which row groups share, so it is read once."""
        self._texts: dict[int, tuple[NDArray[np.uint8], int]] = {}
        """Address → (bytes of strings, their place in ``texts()``)."""
        self._texts_size = 0

    def texts(self) -> NDArray[np.uint8]:
        """The bytes of all strings read so far, in which spans are positions."""
        return np.concatenate([*(data for data, _ in self._texts.values()), np.zeros(1, np.uint8)])

    def of(self, array: pa.Array, reading: Reading) -> ReadValues:
        """The values of ``array``."""
        size = len(array)
        values: KeysOrNumbers
        values = np.empty(size, np.uint64) if reading.column.role == "sparse" else np.empty(size, np.float64)
        spans = np.zeros((size if self.keeps_spans else 0, 2), np.int64)
        found = ReadValues(values, np.empty(size, np.uint8), spans)
        self.fill(array, reading, found)
        return found

    def fill_all(self, chunks: Sequence[pa.Array], reading: Reading, out: ReadValues) -> None:
        """``fill`` for a column of several ``chunks``."""
        (values, states, spans), start = out, 0
        for chunk in chunks:
            part = slice(start, start + len(chunk))
            self.fill(chunk, reading, ReadValues(values[part], states[part], spans[part]))
            start = part.stop

    def fill(self, array: pa.Array, reading: Reading, out: ReadValues) -> None:
        """Fills the values and states of ``out``, and its spans if they have room."""
        (values, states, spans), column, kind = out, reading.column, array.type
        missing = MISSING_KEY if column.role == "sparse" else np.nan
        if kind in TEXTS and len(array):
            self._parse(array, reading, out)
        elif pa.types.is_null(kind) or not len(array):
            values.fill(missing)
            states.fill(ABSENT)
        elif pa.types.is_dictionary(kind):
            dictionary = array.dictionary
            address = dictionary.buffers()[-1].address if len(dictionary) else 0
            key = column.name, address, dictionary.offset
            if key not in self._distinct:
                self._distinct[key] = dictionary, self.of(dictionary, reading)
            indices = array.indices if array.indices.type == pa.int32() else array.indices.cast(pa.int32())
            spread_distinct(
                *self._distinct[key][1], *numbers_and_nulls(indices), missing, values, states, spans
            )
        elif column.kind == "string" or is_text_of_digits(column, kind):
            self._parse(digits_of(array), reading, out)
            if column.kind == "string" and pa.types.is_floating(kind):
                states[(states == PRESENT) & are_rounded(array)] = BAD
        else:
            numbers = numeric(array, column)
            parts = *numbers_and_nulls(numbers), pa.types.is_floating(numbers.type)
            if column.role == "sparse":
                convert_keys(*parts, EXACT.get(kind, LARGEST), values, states)
            else:
                name = rule_name(column)
                low, high = LIMITS.get(name, (FIRST_TIME, LAST_TIME))
                limits = low, LEAST.get(name, 0.0), high
                convert_numbers(*parts, name in ("label", "integer"), limits, values, states)
            words = reading.nulls
            if words and len(nulls := null_numbers(reading.content, words, kind, numbers.type)):
                set_missing(parts[0], nulls, missing, values, states)
        if (is_beyond := is_beyond_years(array)) is not None:
            states[is_beyond] = BAD

    def _parse(self, array: pa.Array, reading: Reading, out: ReadValues) -> None:
        """Reads strings by the rules for text; their bytes are not copied, but those of long strings in views."""
        (values, states, spans), (column, codes, content, words) = out, reading
        is_sparse = column.role == "sparse"
        texts = texts_of(array, only_short=column.kind == "hex" and not words)
        (parse_keys if is_sparse else parse_numbers)(*texts, codes, content, values, states)
        if words and len(nulls := null_values(content, words)):
            set_missing(values, nulls, MISSING_KEY if is_sparse else np.nan, values, states)
        if len(spans) and column.kind == "string":
            data = texts.data
            place = self._texts.setdefault(data.ctypes.data, (data, self._texts_size))[1]
            self._texts_size = max(self._texts_size, place + len(data))
            fill_spans(texts.ends, texts.lengths, place, spans)
