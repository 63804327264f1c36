"""Dense values: what a transform does to a raw one. A missing value becomes 0, which for standardize is the mean.

log1p        log(max(x, 0) + 1)                      (the DLRM paper's code)
log3         log(max(x, 0) + 3), missing: as x = 0   (NVTabular's Criteo example)
standardize  (x - mean) / deviation over the training split
none         x
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_TABLE_SIZE = 1 << 16


@lru_cache
def _log_table(addend: float) -> NDArray[np.float32]:
    return np.log(np.arange(_TABLE_SIZE) + addend).astype(np.float32)


class DenseTransform:
    """``transform`` as the manifest states it, ready to apply. Logarithms of small integers come from a table."""

    def __init__(self, transform: dict[str, Any]) -> None:
        kind = transform["kind"]
        self._shift, self._scale, self._is_log = 0.0, 1.0, kind in ("log1p", "log3")
        self._addend = {"log1p": 1.0, "log3": 3.0}.get(kind, 0.0)
        self._table = np.empty(0, np.float32)
        self._missing = 0.0
        if self._is_log:
            self._table = _log_table(self._addend)
            self._missing = math.log(self._addend)
        elif kind == "standardize":
            self._shift, self._scale = transform["mean"], 1.0 / transform["deviation"]
        elif kind != "none":
            raise ValueError(f"no such dense transform: {transform}")

    def apply(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float32], int]:
        """(float32 of every value, how many are missing)."""
        out = np.empty(len(values), np.float32)
        if self._is_log:
            missing = _logarithms(values, self._addend, self._table, np.float32(self._missing), out)
        else:
            missing = _scaled(values, self._shift, self._scale, out)
        return out, int(missing)


@njit(nogil=True, cache=True)
def _logarithms(values, addend, table, missing, out):  # type: ignore[no-untyped-def]  # compiled
    count = 0
    for i in range(len(values)):
        value = values[i]
        if value >= 0.0 and value < _TABLE_SIZE:
            whole = np.int64(value)
            if whole == value:
                out[i] = table[whole]
            else:
                out[i] = _logarithm(value, addend)
        elif value != value:
            out[i] = missing
            count += 1
        else:
            out[i] = _logarithm(max(value, 0.0), addend)
    return count


@njit(nogil=True, cache=True)
def _logarithm(value, addend):  # type: ignore[no-untyped-def]  # compiled
    return np.float32(math.log1p(value) if addend == 1.0 else math.log(value + addend))


@njit(nogil=True, cache=True)
def _scaled(values, shift, scale, out):  # type: ignore[no-untyped-def]  # compiled
    count = 0
    for i in range(len(values)):
        value = values[i]
        if value != value:
            out[i] = 0.0
            count += 1
        else:
            out[i] = np.float32((value - shift) * scale)
    return count
