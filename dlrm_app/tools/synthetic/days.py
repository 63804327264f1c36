"""A log of several days: ids are born and die, tastes drift. A day depends only on the seed and its number.

Each day ⌊K · new_ids⌋ of a column's K ids die and as many new ones replace them; a column with fewer than one
birth a day keeps its ids. Ranks of popularity are divided into bands whose length is a life in days; a band
holds one id of each age. An id stays in its band: it enters near the end, rises for a quarter of its life to
the top, then falls, and dies at the end. So the ranks of each day follow the same power law.

A planted weight w of standard deviation s becomes w' = √(1 - drift²) · w + drift · s · (a normal draw) on the
next day: its spread stays, and its correlation with the first day's weight falls as (1 - drift²)^(days / 2).
A new id's weights are new draws.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.tools.synthetic.distribution import NUM_SPARSE, Shape, uniform
from dlrm_app.tools.synthetic.signal import NUM_PAIRING, NUM_TELLING, PAIRED_COLUMNS, Signal


class IdLifetimes(NamedTuple):
    """Births a day and days of a life [F], for columns with ``cardinality`` [F] living ids.

    The first day's ids are numbered by their ranks; later ones in the order of birth, from the cardinality on.
    """

    cardinality: NDArray[np.int64]
    births: NDArray[np.int64]
    lifetime: NDArray[np.int64]

    def numbers(self, ranks: NDArray[np.int64], day: int) -> NDArray[np.int64]:
        """The numbers of the ids that have ``ranks`` [B, F] on ``day``, counted from 0; MISSING is kept."""
        return _numbers(self, ranks, day)


def make_lifetimes(shape: Shape, new_ids: float) -> IdLifetimes:
    """The lifetimes of the columns of ``shape`` if the share ``new_ids`` of living ids is replaced each day."""
    births = np.floor(shape.cardinality * new_ids).astype(np.int64)
    return IdLifetimes(shape.cardinality, births, shape.cardinality // np.maximum(births, 1))


def drifted(signal: Signal, lives: IdLifetimes, day: int, drift: float, seed: int, stream: int = 3) -> Signal:
    """The signal on ``day``. ``signal``: that of the first day, number 0. ``stream``: another one for each signal."""
    keys = np.random.Generator(np.random.Philox(key=[seed, stream])).integers(2**63, size=4)
    spread, paired = signal.effect_spread, list(PAIRED_COLUMNS)
    effects, latent = signal.effects[..., None].copy(), signal.latent.copy()
    curves = signal.curves[:, None].copy()
    lasting = IdLifetimes(*np.array([[1], [0], [1]]).repeat(NUM_SPARSE, axis=1))  # one value that never dies
    pairs = IdLifetimes(*(values[paired] for values in lives))
    for key, weights, deviations, ids in (
        (keys[0], effects[:, :NUM_TELLING], spread, lives),
        (keys[1], effects[:, NUM_TELLING + 1 :], spread, lasting),
        (keys[2], latent[:, :NUM_PAIRING], np.ones(len(paired)), pairs),
        (keys[3], curves, signal.curve_spread, lasting),
    ):
        weights[:] = _walk(ids, weights, deviations, day, drift, np.uint64(key))
    return signal._replace(curves=curves[:, 0], effects=effects[..., 0], latent=latent)


@njit(nogil=True, cache=True, inline="always")
def _place(age, lifetime):  # type: ignore[no-untyped-def]  # compiled
    """The place of an id of ``age`` in its band.

    Of every three places, one has a rising id and two have falling ids.
    """
    rising = lifetime // 4
    if age < rising:
        return 3 * (rising - age) - 1
    since = age - rising
    return 3 * (since // 2) + since % 2 if since < 2 * rising else age


@njit(nogil=True, cache=True, inline="always")
def _age(place, lifetime):  # type: ignore[no-untyped-def]  # compiled
    """The inverse of ``_place``."""
    rising = lifetime // 4
    if place >= 3 * rising:
        return place
    return rising - 1 - place // 3 if place % 3 == 2 else rising + 2 * (place // 3) + place % 3


@njit(nogil=True, cache=True, inline="always")
def _identify(lives, c, rank, day):  # type: ignore[no-untyped-def]  # compiled
    """(number, day of birth) of the id of column ``c`` with ``rank`` on ``day``; birth 0 for ids of the first day."""
    cardinality, births, lifetime = lives.cardinality[c], lives.births[c], lives.lifetime[c]
    if rank < 0 or rank >= births * lifetime:
        return rank, 0
    band = rank // lifetime
    born = day - _age(rank % lifetime, lifetime)
    if born <= 0:
        return band * lifetime + _place(-born, lifetime), 0
    return cardinality + (born - 1) * births + band, born


@njit(nogil=True, cache=True)
def _numbers(lives, ranks, day):  # type: ignore[no-untyped-def]  # compiled
    numbers = np.empty_like(ranks)
    for i in range(len(ranks)):
        for c in range(ranks.shape[1]):
            numbers[i, c], _ = _identify(lives, c, ranks[i, c], day)
    return numbers


@njit(nogil=True, cache=True)
def _walk(lives, planted, spread, day, drift, key):  # type: ignore[no-untyped-def]  # compiled
    """Weights [C, R, D] of the ids with ranks [R] on ``day``, from the weights ``planted`` on the first day."""
    weights = np.empty(planted.shape)
    keep = math.sqrt(1.0 - drift * drift)
    for c in range(planted.shape[0]):
        for r in range(planted.shape[1]):
            number, born = _identify(lives, c, r, day)
            for d in range(planted.shape[2]):
                stream = ((np.int64(c * 2 + d) << 32) + number) << 9  # room for 366 draws of an id
                if number < planted.shape[1]:
                    weight = planted[c, number, d]
                else:
                    weight = spread[c] * _normal(key, stream)
                for t in range(born + 1, day + 1):
                    weight = keep * weight + drift * spread[c] * _normal(key, stream + t)
                weights[c, r, d] = weight
    return weights


@njit(nogil=True, cache=True)
def _normal(key, index):  # type: ignore[no-untyped-def]  # compiled
    """A standard normal draw (Box, Muller 1958)."""
    length = math.sqrt(-2.0 * math.log(uniform(key, 2 * index)))
    return length * math.cos(2.0 * math.pi * uniform(key, 2 * index + 1))
