"""Hash functions by their published values and by plain Python; the open-addressing table is a set."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import (
    FNV_START,
    NO_KEY,
    add_byte,
    as_key,
    empty_slots,
    find_slot,
    mix,
    reduce_hash,
)

KEYS = st.integers(0, (1 << 64) - 1).filter(lambda key: key != int(NO_KEY))


@njit(nogil=True)
def insert(keys, slots, found):  # type: ignore[no-untyped-def]  # compiled
    """Inserts ``keys``; fills ``found`` with True for those that were there already."""
    for i in range(len(keys)):
        slot = find_slot(keys[i], slots)
        found[i] = slots[slot] == keys[i]
        slots[slot] = keys[i]


@given(st.lists(KEYS | st.integers(0, 9), max_size=40), st.integers(1, 9))
def test_a_table_is_a_set(keys: list[int], num_free: int) -> None:
    """Also a nearly full one, where probing goes on from the last slot to the first."""
    slots, found = empty_slots(len(set(keys)) + num_free), np.zeros(len(keys), np.bool_)
    insert(np.array(keys, np.uint64), slots, found)
    assert found.tolist() == [key in keys[:place] for place, key in enumerate(keys)]
    assert sorted(slots[slots != NO_KEY].tolist()) == sorted(set(keys))


@given(KEYS)
def test_mix_is_one_to_one(key: int) -> None:
    """By its inverse: xor-shifts by 33 undo themselves, and odd factors have inverses modulo 2^64."""
    value = int(mix(np.uint64(key)))
    for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD):
        value ^= value >> 33
        value = value * pow(factor, -1, 1 << 64) % (1 << 64)
    assert value ^ value >> 33 == key


@given(KEYS, st.integers(1, (1 << 32) - 1))
def test_a_reduced_hash_is_the_high_part_of_a_product(hashed: int, size: int) -> None:
    assert int(reduce_hash(np.uint64(hashed), size)) == (hashed >> 32) * size >> 32 < size


def test_fnv_has_its_published_values() -> None:
    for text, expected in (
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ):
        hashed = FNV_START
        for byte in text:
            hashed = np.uint64(add_byte(hashed, byte))
        assert int(hashed) == expected


def test_no_hash_is_the_key_of_free_slots() -> None:
    assert int(as_key(NO_KEY)) == int(NO_KEY) + 1
    assert int(as_key(FNV_START)) == int(FNV_START)
