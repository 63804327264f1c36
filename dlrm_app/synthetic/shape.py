"""What the columns of a Criteo-shaped file look like: how large, how skewed, how often missing.

Rates and quantiles are those of the Kaggle set. Columns with one rate of missing values go missing together
there, and so they do here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_DENSE = 13
NUM_SPARSE = 26

# fmt: off
MEDIAN = (1, 3, 7, 4, 2639, 35, 3, 7, 40, 1, 1, 0, 5)
NINTH_DECILE = (9, 202, 55, 20, 33151, 312, 33, 34, 294, 2, 6, 2, 25)
LARGEST = (5775, 257675, 65535, 969, 23159456, 431037, 56311, 6047, 29019, 11, 231, 4008, 7393)
DENSE_MISSING = (0.446, 0, 0.199, 0.201, 0.041, 0.242, 0.047, 0.001, 0.047, 0.446, 0.047, 0.77, 0.201)
NEGATIVE_RATE = 0.1  # of the second dense column, whose smallest values are -1 and -2

CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
SPARSE_MISSING = (
    0, 0, 0.037, 0.037, 0, 0.133, 0, 0, 0, 0, 0, 0.037, 0,
    0, 0, 0.037, 0, 0, 0.43, 0.43, 0.037, 0.801, 0, 0.037, 0.43, 0.43,
)
# fmt: on


@dataclass(frozen=True)
class Shape:
    """Columns as arrays, dense first: N dense, F sparse.

    A dense value v has log1p(v) near a logistic distribution with ``location`` and ``scale`` [N], cut at 0 and
    ``largest`` [N]. An id's rank lies in [0, ``cardinality``) [F] and follows a power law of exponent ``zipf``.
    Column c is missing where its group's draw, group ``missing_group[c]`` [N + F], lies under
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
    location = np.log1p(np.array(MEDIAN, dtype=np.float64))
    ninth = np.log1p(np.array(NINTH_DECILE, dtype=np.float64))
    missing = np.array(DENSE_MISSING + SPARSE_MISSING, dtype=np.float64)
    _, group = np.unique(missing, return_inverse=True)
    cardinality = np.array(CARDINALITIES, dtype=np.int64)
    return Shape(
        location=location,
        scale=(ninth - location)
        / np.log(9.0),  # a logistic's ninth decile lies log(9) scales above its median
        largest=np.array(LARGEST, dtype=np.float64),
        cardinality=cardinality if max_cardinality is None else np.minimum(cardinality, max_cardinality),
        zipf=zipf,
        missing_rate=missing,
        missing_group=group.astype(np.int64),
    )
