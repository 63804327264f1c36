"""A hash of a row's content: the same for copies of a row, whatever file, line, format or order they come in.

It covers the raw keys and numbers as parsed: numbers as float32, times in whole seconds, lists in their order. Derived
columns follow from these, and the label is left out: rows that differ only in it must be treated alike. Two
different rows share a hash with probability 2^-64. The hash belongs to the format of manifests; it never changes.
"""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import GOLDEN, mix
from dlrm_app.logs.raw_columns import RawColumns
from dlrm_app.logs.spec import Spec, list_slots

_29 = np.uint64(29)
_NAN = np.uint64(0x7FC00000)


def content_hashes(raw: RawColumns, spec: Spec) -> NDArray[np.uint64]:
    """The hash of each row's content [R]."""
    hashes = np.zeros(len(raw.labels), np.uint64)
    own = {column.name for column in spec.columns}
    num_dense = sum(column.name in own for column in spec.dense)
    for column, seconds in zip(spec.times, raw.times, strict=True):
        if column.name not in spec.derived_from:
            continue  # it decides the splits, and rows that are scored need not have it
        whole = np.where(np.isnan(seconds), -(2.0**63), np.floor(seconds))
        _add_keys(whole.astype(np.int64).view(np.uint64), hashes)
    for numbers in raw.dense[:num_dense]:
        _add_numbers(numbers, hashes)
    slots = list_slots(spec)
    for name in (column.name for column in spec.sparse):
        is_list, slot = slots[name]
        if is_list:
            _add_lists(raw.lists[slot].ends, raw.lists[slot].keys, hashes)
        elif name in own:
            _add_keys(raw.keys[slot], hashes)
    for weights in raw.element_weights:
        _add_lists(weights.ends, weights.keys, hashes)
    for vectors in raw.vectors:
        narrow = vectors.elements.view(np.float64).astype(np.float32)
        _add_lists(vectors.ends, narrow.view(np.uint32).astype(np.uint64), hashes)
    _finish(hashes)
    return hashes


@njit(nogil=True, cache=True, inline="always")
def _add(state, value):  # type: ignore[no-untyped-def]  # compiled
    state = (state ^ value) * GOLDEN
    return state ^ (state >> _29)


@njit(nogil=True, cache=True)
def _add_numbers(numbers, hashes):  # type: ignore[no-untyped-def]  # compiled
    narrow = np.empty(len(hashes), np.float32)
    bits = narrow.view(np.uint32)
    for r in range(len(hashes)):
        narrow[r] = np.float32(numbers[r]) + np.float32(0.0)  # -0 becomes 0
    for r in range(len(hashes)):
        is_missing = numbers[r] != numbers[r]
        hashes[r] = _add(hashes[r], _NAN if is_missing else np.uint64(bits[r]))


@njit(nogil=True, cache=True)
def _add_keys(keys, hashes):  # type: ignore[no-untyped-def]  # compiled
    for r in range(len(hashes)):
        hashes[r] = _add(hashes[r], keys[r])


@njit(nogil=True, cache=True)
def _add_lists(ends, keys, hashes):  # type: ignore[no-untyped-def]  # compiled
    for r in range(len(hashes)):
        state = _add(hashes[r], np.uint64(ends[r + 1] - ends[r]))
        for at in range(ends[r], ends[r + 1]):
            state = _add(state, keys[at])
        hashes[r] = state


@njit(nogil=True, cache=True)
def _finish(hashes):  # type: ignore[no-untyped-def]  # compiled
    for r in range(len(hashes)):
        hashes[r] = mix(hashes[r])


def deal_keys(hashes: NDArray[np.uint64], seed: int, purpose: int) -> NDArray[np.uint64]:
    """Random keys by which rows are dealt, independent for each ``seed`` and ``purpose``."""
    salt = (seed * int(GOLDEN) + purpose * 0xD1B54A32D192ED03 + 1) & ((1 << 64) - 1)
    keys = hashes ^ np.uint64(salt)
    _finish(keys)
    return keys
