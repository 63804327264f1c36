"""A compiled sort of random words: the order of a row group's rows would otherwise take longer than decoding them."""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit


def sort_random(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``words`` in rising order; of any distribution, but fast where their high bits are evenly spread."""
    num_bits = max(1, len(words).bit_length() - 1)  # about a word a bucket
    ordered: NDArray[np.uint64] = _sort(words, num_bits)
    return ordered


@njit(nogil=True, cache=True)
def _sort(words, num_bits):  # type: ignore[no-untyped-def]  # compiled
    shift = np.uint64(64 - num_bits)
    ends = np.zeros((1 << num_bits) + 1, np.int32)
    for word in words:
        ends[np.int64(word >> shift) + 1] += 1
    for bucket in range(1, len(ends)):
        ends[bucket] += ends[bucket - 1]
    out = np.empty(len(words), np.uint64)
    for word in words:
        at = np.int64(word >> shift)
        out[ends[at]] = word
        ends[at] += 1
    for i in range(1, len(out)):  # each word is at most a bucket away from where it belongs
        word, k = out[i], i
        while k > 0 and out[k - 1] > word:
            out[k] = out[k - 1]
            k -= 1
        out[k] = word
    return out
