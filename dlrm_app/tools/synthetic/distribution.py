"""Columns of a log like Criteo's, with their sizes, skew and missing rates, and rows drawn from them.

Rates and quantiles are those of the Kaggle set. Columns with the same rate of missing values are missing together
there, and also here. A row is a function of the seed and its number, whatever was drawn before it.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import GOLDEN

NUM_DENSE = 13
NUM_SPARSE = 26

# fmt: off
MEDIAN = (1, 3, 7, 4, 2639, 35, 3, 7, 40, 1, 1, 0, 5)
NINTH_DECILE = (9, 202, 55, 20, 33151, 312, 33, 34, 294, 2, 6, 2, 25)
LARGEST = (5775, 257675, 65535, 969, 23159456, 431037, 56311, 6047, 29019, 11, 231, 4008, 7393)
DENSE_MISSING = (0.446, 0, 0.199, 0.201, 0.041, 0.242, 0.047, 0.001, 0.047, 0.446, 0.047, 0.77, 0.201)
NEGATIVE_RATE = 0.1  # in the second dense column, whose smallest values are -1 and -2

CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
SPARSE_MISSING = (
    0, 0, 0.037, 0.037, 0, 0.133, 0, 0, 0, 0, 0, 0.037, 0,
    0, 0, 0.037, 0, 0, 0.43, 0.43, 0.037, 0.801, 0, 0.037, 0.43, 0.43,
)
# fmt: on


class Shape(NamedTuple):
    """Columns as arrays, dense first: N dense, F sparse.

    log1p of a dense value has about a logistic distribution with ``location`` and ``scale`` [N], cut at 0 and
    ``largest`` [N]. An id's rank lies in [0, ``cardinality``) [F] and follows a power law of exponent ``zipf``.
    Column c is missing if the draw of its group, ``missing_group[c]`` [N + F], is below
    ``missing_rate[c]``.
    """

    location: NDArray[np.float64]
    scale: NDArray[np.float64]
    largest: NDArray[np.float64]
    cardinality: NDArray[np.int64]
    zipf: float
    missing_rate: NDArray[np.float64]
    missing_group: NDArray[np.int64]


def criteo_shape(max_cardinality: int | None, zipf: float) -> Shape:
    """The Kaggle set's columns, none with more than ``max_cardinality`` ids."""
    location, ninth = np.log1p(np.array([MEDIAN, NINTH_DECILE], dtype=np.float64))
    missing = np.array(DENSE_MISSING + SPARSE_MISSING, dtype=np.float64)
    return Shape(
        location=location,
        scale=(ninth - location)
        / np.log(9.0),  # a logistic's ninth decile lies log(9) scales above its median
        largest=np.array(LARGEST, dtype=np.float64),
        cardinality=np.minimum(np.array(CARDINALITIES), max_cardinality or max(CARDINALITIES)),
        zipf=zipf,
        missing_rate=missing,
        missing_group=np.unique(missing, return_inverse=True)[1].astype(np.int64),
    )


_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_TINY = 2.0**-53
_HARMONIC = 1e-6


@njit(nogil=True, cache=True, inline="always")
def uniform(key, index):  # type: ignore[no-untyped-def]  # compiled; inlined into its callers' loops
    """A number in (0, 1): SplitMix64 (Steele, Lea, Flood 2014) at ``index`` of the stream ``key``."""
    x = np.uint64(key) + np.uint64(index + 1) * GOLDEN
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    x = x ^ (x >> _31)
    return (np.float64(x >> _11) + 0.5) * _TINY


def uniform_draws(numbers: NDArray[np.int64], key: int, purpose: int) -> NDArray[np.float64]:
    """Draws from [0, 1) by a hash of ``numbers`` (SplitMix64), different for each ``key`` and ``purpose``."""
    state = numbers.astype(np.uint64) * np.uint64(4) + np.uint64(purpose) + np.uint64(key & (2**62 - 1))
    state = state * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state ^ (state >> np.uint64(31))) >> np.uint64(11)) / 2.0**53


@njit(nogil=True, cache=True, inline="always")
def power_law_span(rows, exponent):  # type: ignore[no-untyped-def]  # compiled
    """The argument ``span`` of ``power_law`` for a table with ``rows`` rows."""
    log_size = math.log(rows + 1.0)
    return log_size if abs(exponent) < _HARMONIC else math.expm1(exponent * log_size)


@njit(nogil=True, cache=True, inline="always")
def power_law(u, span, exponent):  # type: ignore[no-untyped-def]  # compiled
    """The inverse, at ``u``, of the distribution function of the density x^-a on [1, rows + 1). ``exponent`` is 1 - a.

    The id is the whole part minus one. NVIDIA Merlin's distributed-embeddings draws ids in this way: power_law(1,
    rows + 1, a, u) - 1 of examples/benchmarks/synthetic_models/synthetic_models.py, which has no a = 1.
    """
    return math.exp(u * span) if abs(exponent) < _HARMONIC else (1.0 + u * span) ** (1.0 / exponent)


MISSING = -1  # the rank of a missing id
MISSING_VALUE = np.iinfo(np.int64).min
NEGATIVE_COLUMN = 1

# a row's draws, in this order: label, negative value, each column's value, each group's missing values
_LABEL, _NEGATIVE, _VALUES = 0, 1, 2
_GROUPS = _VALUES + NUM_DENSE + NUM_SPARSE
_DRAWS_PER_ROW = 64


@njit(nogil=True, cache=True, inline="always")
def _uniform(key, row, draw):  # type: ignore[no-untyped-def]  # compiled; inlined into the loop below
    return uniform(key, row * _DRAWS_PER_ROW + draw)


def draw_rows(
    shape: Shape, key: int, first_row: int, num_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Draws rows: dense values [B, N] (or ``MISSING_VALUE``), ranks of ids [B, F] (or ``MISSING``), label draws [B].

    A row is a click if its label draw, uniform in (0, 1), is below its true probability.
    """
    return _draw(shape, np.uint64(key), first_row, num_rows)


@njit(nogil=True, cache=True)
def _draw(shape, key, first_row, num_rows):  # type: ignore[no-untyped-def]  # compiled
    values = np.empty((num_rows, NUM_DENSE), np.int64)
    ranks = np.empty((num_rows, NUM_SPARSE), np.int64)
    label_draws = np.empty(num_rows, np.float64)
    exponent = 1.0 - shape.zipf
    span = np.empty(NUM_SPARSE, np.float64)
    for c in range(NUM_SPARSE):
        span[c] = power_law_span(shape.cardinality[c], exponent)
    for i in range(num_rows):
        row = first_row + i
        label_draws[i] = _uniform(key, row, _LABEL)
        is_negative = _uniform(key, row, _NEGATIVE) < NEGATIVE_RATE
        for c in range(NUM_DENSE):
            u = _uniform(key, row, _VALUES + c)
            v = math.exp(shape.location[c] + shape.scale[c] * math.log(u / (1.0 - u))) - 1.0
            values[i, c] = np.int64(min(max(v, 0.0), shape.largest[c]))
            if c == NEGATIVE_COLUMN and is_negative:
                values[i, c] = -1 if u < 0.9 else -2
            if _uniform(key, row, _GROUPS + shape.missing_group[c]) < shape.missing_rate[c]:
                values[i, c] = MISSING_VALUE
        for c in range(NUM_SPARSE):
            x = power_law(_uniform(key, row, _VALUES + NUM_DENSE + c), span[c], exponent)
            ranks[i, c] = min(np.int64(x) - 1, shape.cardinality[c] - 1)
            group = shape.missing_group[NUM_DENSE + c]
            if _uniform(key, row, _GROUPS + group) < shape.missing_rate[NUM_DENSE + c]:
                ranks[i, c] = MISSING
    return values, ranks, label_draws
