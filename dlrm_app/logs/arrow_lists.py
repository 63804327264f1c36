"""Lists of an Arrow array, and texts that are split into lists."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.logs.escapes import unescaped
from dlrm_app.logs.list_fields import NULLS_IN_BRACKETS
from dlrm_app.logs.parquet_columns import TEXTS
from dlrm_app.logs.spec import LogColumn

_BLANKS, _IN_QUOTES = " \t\r\n", "^(?s:'(.*)'|\"(.*)\")$"
_RUN = f"[{_BLANKS}]+"
_LOST = r"^(?:\%s|['\"]|…|\.\.\.$)"
"""The beginning of an element, not in quotes, that is a list itself, opens a quote that it does not close, or stands
for elements that were left out.
"""


def ends_of(sizes: NDArray[np.generic]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def lists_of(
    array: pa.Array, column: LogColumn, words: Sequence[str]
) -> tuple[NDArray[np.int64], pa.Array, NDArray[np.bool_] | None]:
    """Returns (the ends of the lists [R + 1], their elements, True for each text without the brackets of a list).

    Texts are split at the separator of ``column``; empty texts and null words are empty lists. The last is None unless
    these are texts with brackets.
    """
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_null(kind):  # no row has a list
        return np.zeros(len(array) + 1, np.int64), pa.nulls(0), None
    is_bare = None
    if kind in TEXTS:
        array, is_bare = _split_texts(array, column, words)
    if pa.types.is_list(array.type) and not array.null_count:
        ends = numbers_of(array.offsets).astype(np.int64)
        return ends - ends[0], array.values.slice(ends[0], ends[-1] - ends[0]), is_bare
    import pyarrow.compute as pc

    # a cast would give list views that were read from Parquet the values of other rows; flatten leaves out whatever
    # null lists hold
    return ends_of(numbers_of(pc.fill_null(pc.list_value_length(array), 0))), array.flatten(), is_bare


def _split_texts(
    array: pa.Array, column: LogColumn, words: Sequence[str]
) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    """Returns (the lists that texts hold; True for each text without the brackets that the column has)."""
    import pyarrow.compute as pc

    texts = (array.dictionary_decode() if pa.types.is_dictionary(array.type) else array).cast(
        pa.large_string()
    )
    is_empty = pc.is_in(texts, pa.array(["", *words], pa.large_string())) if words else pc.equal(texts, "")
    texts = pc.if_else(is_empty, None, texts)
    if column.brackets is None:
        lists = pc.split_pattern(texts, column.separator)
        if column.separator == " ":
            return lists, None
        elements = pc.utf8_trim(lists.values, _BLANKS)
        return pa.ListArray.from_arrays(lists.offsets, elements, mask=pc.is_null(lists)), None
    texts = pc.utf8_trim(texts, _BLANKS)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    inside = pc.utf8_trim(pc.utf8_slice_codeunits(texts, 1, -1), _BLANKS)
    has_both = pc.and_(pc.starts_with(texts, column.brackets[0]), pc.ends_with(texts, column.brackets[1]))
    is_good = pc.and_(has_both, pc.greater(pc.utf8_length(texts), 1))
    inside = pc.if_else(pc.and_(is_good, pc.not_equal(inside, "")), inside, None)
    has_runs = column.separator == " "
    lists = pc.split_pattern_regex(inside, _RUN) if has_runs else pc.split_pattern(inside, column.separator)
    written = pc.utf8_trim(lists.values, _BLANKS)
    elements = pc.replace_substring_regex(written, _IN_QUOTES, r"\1\2")
    if column.kind == "string" and not column.whole:
        elements = _without_escapes(elements, written)
    elements = pc.if_else(pc.is_in(written, pa.array(NULLS_IN_BRACKETS, written.type)), None, elements)
    whole = pa.ListArray.from_arrays(lists.offsets, elements, mask=pc.is_null(lists))
    is_lost = pc.and_(
        pc.match_substring_regex(written, _LOST % column.brackets[0]),
        pc.invert(pc.match_substring_regex(written, _IN_QUOTES)),
    )
    lost = ends_of(numbers_of(is_lost.cast(pa.uint8())))[numbers_of(lists.offsets)]
    return whole, ~numbers_of(pc.fill_null(is_good, True).cast(pa.uint8())).astype(np.bool_) | (
        lost[1:] > lost[:-1]
    )


def _without_escapes(elements: pa.Array, written: pa.Array) -> pa.Array:
    """``elements`` without the escapes of those that are ``written`` in quotes."""
    import pyarrow.compute as pc

    is_escaped = pc.and_(pc.match_substring(written, "\\"), pc.match_substring_regex(written, _IN_QUOTES))
    if not pc.any(is_escaped).as_py():
        return elements
    encoded = elements.dictionary_encode()
    distinct = pa.array(map(unescaped, encoded.dictionary.to_pylist()), elements.type)
    return pc.if_else(is_escaped, distinct.take(encoded.indices), elements)


def split_weights(elements: pa.Array, mark: str) -> tuple[pa.Array, pa.Array]:
    """(the values, the texts of the weights) of elements such as t1:0.5; null for those without ``mark``."""
    import pyarrow.compute as pc

    texts = (elements.dictionary_decode() if pa.types.is_dictionary(elements.type) else elements).cast(
        pa.large_string()
    )
    parts = pc.extract_regex(
        texts, rf"^(?P<value>(?s:.+))\x{ord(mark):02x}(?P<weight>[^\x{ord(mark):02x}]*)$"
    )
    return parts.field("value"), parts.field("weight")
