"""Derived columns: computed from a row's raw values before encoding, as declared in the dataset's ``derived``.

cross              (sparse) the combination of all values: FNV-1a of their keys, 8 bytes each, the lowest first. A
                   missing value counts as a value; the cross is missing if all values are
hour, weekday      (sparse) 0 to 23, 0 (Monday) to 6, in the column's time zone or in UTC
seconds_since      (dense) from the second time to the first
in_list            (dense) 1 if the value is in the list, else 0

A column derived from a missing value is missing. Shapes: R rows, N dense columns, F sparse columns of one value, T
times.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import FNV_START, add_byte, as_key
from dlrm_app.logs.read_derived import DERIVED_KINDS
from dlrm_app.logs.spec import LOOKED_UP, Spec, list_slots
from dlrm_app.logs.strings import MISSING_KEY
from dlrm_app.logs.zones import Offsets

_HOUR, _DAY, _MONDAY = 3600, 86_400, 3  # 1970 began on a Thursday
_8, _BYTE = np.uint64(8), np.uint64(0xFF)
_ORDER: list[str | None] = [*DERIVED_KINDS]


def derive(
    spec: Spec,
    times: NDArray[np.float64],
    dense: NDArray[np.float64],
    keys: NDArray[np.uint64],
    lists: Sequence[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]],
) -> None:
    """Fills the derived columns in ``dense`` [N, R] and ``keys`` [F, R].

    ``times`` [T, R]; ``lists``: (ends, keys, spans) for each.
    """
    if not spec.derived:
        return
    dense_slots = {column.name: slot for slot, column in enumerate(spec.dense)}
    sparse_slots = {name: slot for name, (_, slot) in list_slots(spec).items()}
    time_of = {column.name: times[slot] for slot, column in enumerate(spec.times)}
    computed = [column for column in spec.derived if column.role != LOOKED_UP]
    for column in sorted(computed, key=lambda column: _ORDER.index(column.rule)):
        if column.rule == "cross":
            parts = np.array([sparse_slots[name] for name in column.of], np.int64)
            _cross(keys, parts, keys[sparse_slots[column.name]])
        elif column.rule in ("hour", "weekday"):
            time = _local(time_of[column.of[0]], column.offsets)
            number = time // _HOUR % 24 if column.rule == "hour" else (time // _DAY + _MONDAY) % 7
            is_missing = np.isnan(number)
            present = np.where(is_missing, 0, number).astype(np.uint64)
            keys[sparse_slots[column.name]] = np.where(is_missing, MISSING_KEY, present)
        elif column.rule == "seconds_since":
            later, earlier = (time_of[name] for name in column.of)
            dense[dense_slots[column.name]] = later - earlier
        else:
            item, history = (sparse_slots[name] for name in column.of)
            _find(keys[item], *lists[history][:2], dense[dense_slots[column.name]])


def _local(times: NDArray[np.float64], offsets: Offsets) -> NDArray[np.float64]:
    """``times`` in seconds since 1970 of the clock with these ``offsets`` from UTC."""
    if not offsets:
        return times
    starts, ahead = np.array(offsets, np.float64).T
    return times + ahead[np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)]


@njit(nogil=True, cache=True)
def _cross(keys, parts, out):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(out)):
        crossed, num_missing = FNV_START, 0
        for part in parts:
            key = keys[part, row]
            num_missing += key == MISSING_KEY
            for _ in range(8):
                crossed = add_byte(crossed, key & _BYTE)
                key >>= _8
        out[row] = MISSING_KEY if num_missing == len(parts) else as_key(crossed)


@njit(nogil=True, cache=True)
def _find(values, ends, items, out):  # type: ignore[no-untyped-def]  # compiled
    """Writes 1 for each value that is in its row's list, otherwise 0; NaN if the value is missing."""
    for row in range(len(values)):
        out[row] = np.nan if values[row] == MISSING_KEY else 0.0
        for at in range(ends[row], ends[row + 1]):
            if items[at] == values[row] and values[row] != MISSING_KEY:
                out[row] = 1.0
