"""Histories: each row's lists of earlier items, and how they decide its click.

A row has two lists of values of the column ``ITEM``: ``last``, the items that were looked at, newest last,
and ``bought``, with a count for each. Items have places on a sphere, which they keep for life. The logit gets
two parts: the likeness of the row's item to the nearest of the last ones, which a sum or mean over the list
does not show, and the sum over the bought ones of count times cosine, which a sum by counts does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.tools.synthetic.distribution import MISSING, Shape, power_law, power_law_span, uniform

ITEM = 4  # a few hundred values, none missing
MAX_COUNT = 5
NUM_PARTS = 2
_SHARPNESS = 8.0  # likeness is exp(8 (cosine - 1)): at an angle of 30 degrees a third
_SLOTS = 256  # draws of a row: two lengths, at most 100 last items, half as many bought ones and their counts


class DrawnLists(NamedTuple):
    """Lists of B rows: ranks of ``last`` [B, M] and ``bought`` [B, M'] items, then MISSING; ``counts`` [B, M']
    of the latter.
    """

    last: NDArray[np.int64]
    bought: NDArray[np.int64]
    counts: NDArray[np.int64]


class Histories(NamedTuple):
    """Lists of up to ``length`` items, ``places`` [R, 3] by rank. A row's lists depend only on its number."""

    length: int
    row_key: int
    place_key: int
    exponent: float
    places: NDArray[np.float64]

    def lists(self, first_row: int, num_rows: int) -> DrawnLists:
        """The lists of rows from ``first_row`` on; all lengths up to the longest are equally frequent."""
        key = np.uint64(self.row_key)
        return DrawnLists(*_draw(key, first_row, num_rows, self.length, len(self.places), self.exponent))

    def parts(self, items: NDArray[np.int64], lists: DrawnLists) -> NDArray[np.float64]:
        """The parts of the logit [B, NUM_PARTS] of rows that show items of the ranks ``items`` [B], before weights."""
        return _parts(self.places, items, lists)

    def with_items(self, numbers: NDArray[np.int64]) -> "Histories":
        """These histories on a day on which items with ``numbers`` [R] have the ranks 0 to R - 1."""
        return self._replace(places=_places(np.uint64(self.place_key), numbers))


def make_histories(shape: Shape, key: list[int], length: int) -> Histories:
    """The histories of ``key`` [2] on the first day, on which an item's number is its rank."""
    keys = np.random.Generator(np.random.Philox(key=key)).integers(2**63, size=2)
    exponent = 1.0 - shape.zipf
    histories = Histories(length, int(keys[0]), int(keys[1]), exponent, np.empty((0, 3)))
    return histories.with_items(np.arange(shape.cardinality[ITEM]))


@njit(nogil=True, cache=True)
def _draw(key, first_row, num_rows, length, num_items, exponent):  # type: ignore[no-untyped-def]  # compiled
    most_bought = (length + 1) // 2
    last = np.full((num_rows, length), MISSING, np.int64)
    bought = np.full((num_rows, most_bought), MISSING, np.int64)
    counts = np.zeros((num_rows, most_bought), np.int64)
    span = power_law_span(num_items, exponent)
    for i in range(num_rows):
        at = (first_row + i) * _SLOTS
        for j in range(np.int64(uniform(key, at) * (length + 1))):
            x = power_law(uniform(key, at + 2 + j), span, exponent)
            last[i, j] = min(np.int64(x) - 1, num_items - 1)
        for j in range(np.int64(uniform(key, at + 1) * (most_bought + 1))):
            slot = at + 2 + length + 2 * j
            x = power_law(uniform(key, slot), span, exponent)
            bought[i, j] = min(np.int64(x) - 1, num_items - 1)
            counts[i, j] = min(1 + np.int64(-np.log2(uniform(key, slot + 1))), MAX_COUNT)
    return last, bought, counts


@njit(nogil=True, cache=True)
def _places(key, numbers):  # type: ignore[no-untyped-def]  # compiled
    """Points [R, 3] that are spread evenly over the unit sphere."""
    places = np.empty((len(numbers), 3))
    for i in range(len(numbers)):
        height = 2.0 * uniform(key, 2 * numbers[i]) - 1.0
        angle = 2.0 * np.pi * uniform(key, 2 * numbers[i] + 1)
        radius = np.sqrt(1.0 - height * height)
        places[i] = (radius * np.cos(angle), radius * np.sin(angle), height)
    return places


@njit(nogil=True, cache=True)
def _parts(places, items, lists):  # type: ignore[no-untyped-def]  # compiled
    parts = np.zeros((len(items), NUM_PARTS))
    for i in range(len(items)):
        x, y, z = places[items[i]]
        for rank in lists.last[i]:
            if rank != MISSING:
                cosine = x * places[rank, 0] + y * places[rank, 1] + z * places[rank, 2]
                parts[i, 0] = max(parts[i, 0], np.exp(_SHARPNESS * (cosine - 1.0)))
        for j in range(len(lists.bought[i])):
            rank = lists.bought[i, j]
            if rank != MISSING:
                cosine = x * places[rank, 0] + y * places[rank, 1] + z * places[rank, 2]
                parts[i, 1] += lists.counts[i, j] * cosine
    return parts
