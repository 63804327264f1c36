"""Rows from a counter: row r of a seed is the same whatever was drawn before it, by whom, in what pieces."""

import math

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.synthetic.power_law import power_law, power_law_span, uniform
from dlrm_app.synthetic.shape import NEGATIVE_RATE, NUM_DENSE, NUM_SPARSE, Shape

MISSING = -1  # the rank of an id that is not there
MISSING_VALUE = np.iinfo(np.int64).min
NEGATIVE_COLUMN = 1

# a row's draws, in this order: its label, what is negative, each column's value, each group's missing values
_LABEL, _NEGATIVE, _VALUES = 0, 1, 2
_GROUPS = _VALUES + NUM_DENSE + NUM_SPARSE
_DRAWS_PER_ROW = 64


@njit(nogil=True, cache=True, inline="always")
def _uniform(key, row, draw):  # type: ignore[no-untyped-def]  # compiled; inlined into the loop below
    return uniform(key, row * _DRAWS_PER_ROW + draw)


def draw_rows(
    shape: Shape, key: int, first_row: int, num_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Dense values [B, N] (``MISSING_VALUE`` where missing), ranks of ids [B, F] (``MISSING``), label draws [B].

    A row clicks where its label draw, uniform in (0, 1), lies under its true probability.
    """
    return _draw(
        np.uint64(key),
        first_row,
        num_rows,
        shape.location,
        shape.scale,
        shape.largest,
        shape.cardinality,
        1.0 - shape.zipf,
        shape.missing_rate,
        shape.missing_group,
    )


@njit(nogil=True, cache=True)
def _draw(  # type: ignore[no-untyped-def]  # compiled
    key, first_row, num_rows, location, scale, largest, cardinality, exponent, missing_rate, missing_group
):
    values = np.empty((num_rows, NUM_DENSE), np.int64)
    ranks = np.empty((num_rows, NUM_SPARSE), np.int64)
    label_draws = np.empty(num_rows, np.float64)
    span = np.empty(NUM_SPARSE, np.float64)
    for c in range(NUM_SPARSE):
        span[c] = power_law_span(cardinality[c], exponent)
    for i in range(num_rows):
        row = first_row + i
        label_draws[i] = _uniform(key, row, _LABEL)
        is_negative = _uniform(key, row, _NEGATIVE) < NEGATIVE_RATE
        for c in range(NUM_DENSE):
            u = _uniform(key, row, _VALUES + c)
            v = math.exp(location[c] + scale[c] * math.log(u / (1.0 - u))) - 1.0
            values[i, c] = np.int64(min(max(v, 0.0), largest[c]))
            if c == NEGATIVE_COLUMN and is_negative:
                values[i, c] = -1 if u < 0.9 else -2
            if _uniform(key, row, _GROUPS + missing_group[c]) < missing_rate[c]:
                values[i, c] = MISSING_VALUE
        for c in range(NUM_SPARSE):
            x = power_law(_uniform(key, row, _VALUES + NUM_DENSE + c), span[c], exponent)
            ranks[i, c] = min(np.int64(x) - 1, cardinality[c] - 1)
            group = missing_group[NUM_DENSE + c]
            if _uniform(key, row, _GROUPS + group) < missing_rate[NUM_DENSE + c]:
                ranks[i, c] = MISSING
    return values, ranks, label_draws
