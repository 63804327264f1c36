"""Vectors of rows, and the values that look vectors up, as the encoder makes columns of them."""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import VECTOR_TYPES, Bags, pack_vectors, word_type
from dlrm_app.dataset.dictionary import JaggedColumns
from dlrm_app.dataset.vector_columns import VectorColumn
from dlrm_app.encoding.sparse import RARE_ID, SparseEncoder
from dlrm_app.errors import DataError, Problem
from dlrm_app.logs.raw_columns import RawColumns, RawList


def encode_vectors(lists: RawList, column: VectorColumn) -> tuple[Bags, int]:
    """The words of each row's vector, of zeros where it is missing, and the number of those.

    Raises DataError for numbers that shards cannot keep.
    """
    present = lists.ends[1:] > lists.ends[:-1]
    numbers = lists.elements.view(np.float64).astype(np.float32).reshape(-1, column.size)
    limit = np.finfo(VECTOR_TYPES[column.dtype]).max
    if numbers.size and (largest := np.abs(numbers).max()) > limit:
        rule = f"has the number {largest:.6g}, and {column.dtype} holds numbers up to {limit:.6g}"
        raise DataError(Problem(f"column {column.name}", rule, "preprocess with vectors.dtype=fp32"))
    words = np.zeros((len(present), column.num_words), word_type(column).to_pandas_dtype())
    words[present] = pack_vectors(numbers, column)
    offsets = np.arange(len(present) + 1, dtype=np.int32) * column.num_words
    return Bags(words.reshape(-1), offsets.astype(np.int32)), int((~present).sum())


def look_up_vectors(
    raw: RawColumns, slot: int, is_list: bool, ids: SparseEncoder
) -> tuple[NDArray[np.int32] | Bags, int]:
    """The ids of the values of the parser's column ``slot``, and the number of rows without any vector."""
    if is_list:
        ends, found = raw.lists[slot].ends, ids.apply_to_lists(raw.lists[slot]).ids
    else:
        ends, found = np.arange(len(raw.labels) + 1), ids.apply(JaggedColumns.joined([raw.keys[slot]])).ids
    with_vectors = np.concatenate([[0], np.cumsum(found > RARE_ID)])[ends]
    num_missing = int((with_vectors[1:] == with_vectors[:-1]).sum())
    return Bags(found, ends.astype(np.int32)) if is_list else found, num_missing
