"""One day of a vocabulary: which values are given ids, which lose theirs. Pure arithmetic over arrays.

A value that was seen ``min_count`` times over all days so far, today among them, is given an id: the most frequent value
first, equal counts by key, free ids before new ones, the lowest first. Without room for it, the value that was not seen for
the longest time loses its id, but none that was seen today; the rarer one first, then the lower id. A value that was not
seen for ``expire_days`` is forgotten. So what becomes of a day depends on its rows alone, and on the days before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrm_app.preprocess.encode.sparse import FIRST_ID


@dataclass(frozen=True)
class Rule:
    """day: its number; rows: that the table may have at most, None for any number, those of missing and rare values included."""

    day: int
    min_count: int = 1
    rows: int | None = None
    expire_days: int | None = None


@dataclass(frozen=True)
class Values:
    """V values with ids, by their ids from FIRST_ID on; ``is_living`` is False for an id that no value has."""

    keys: NDArray[np.uint64]
    is_living: NDArray[np.bool_]
    count: NDArray[np.int64]
    generation: NDArray[np.int32]
    given_day: NDArray[np.int32]
    last_seen: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def none(cls) -> "Values":
        """The values before the first day."""
        days = np.empty(0, np.int32)
        return cls(np.empty(0, np.uint64), np.empty(0, np.bool_), np.empty(0, np.int64), days, days, days)


@dataclass(frozen=True)
class Waiting:
    """Values without an id: ``today`` counts them in this day's rows, ``count`` in those of all days, this one included."""

    keys: NDArray[np.uint64]
    today: NDArray[np.int64]
    count: NDArray[np.int64]
    last_seen: NDArray[np.int32]

    def take(self, places: Any) -> "Waiting":
        """Those at ``places``: their numbers, a slice, or a flag for each."""
        return Waiting(self.keys[places], self.today[places], self.count[places], self.last_seen[places])

    @classmethod
    def none(cls) -> "Waiting":
        """No values."""
        count = np.empty(0, np.int64)
        return cls(np.empty(0, np.uint64), count, count, np.empty(0, np.int32))

    @classmethod
    def joined(cls, parts: "Sequence[Waiting]") -> "Waiting":
        """The values of all ``parts``."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


@dataclass(frozen=True)
class Grown:
    """A vocabulary after a day: ``new`` ids were given, ``expired`` values lost theirs, for whatever reason."""

    values: Values
    waiting: Waiting
    new: NDArray[np.int64]
    """Their places in ``values``, in the order in which they were given."""
    is_old: NDArray[np.bool_]
    """[V]: whether an id has the value that it had before."""
    num_expired: int
    num_given_again: int


def grow(
    old: Values, today: NDArray[np.int64], is_seen: NDArray[np.bool_], waiting: Waiting, rule: Rule
) -> Grown:
    """The vocabulary ``old`` after a day of which it has seen ``today`` [V] rows of each value.

    ``is_seen`` [V]: whether any row of the day has the value, those of val and test too; ``waiting``: all values that it lacks.
    """
    last_seen = np.where(is_seen, np.int32(rule.day), old.last_seen)
    is_living, expired = old.is_living, np.zeros(len(old), np.bool_)
    if rule.expire_days is not None:
        expired = is_living & (rule.day - last_seen >= rule.expire_days)
        waiting = waiting.take(rule.day - waiting.last_seen < rule.expire_days)
    count = old.count + today
    candidates = np.flatnonzero((waiting.today > 0) & (waiting.count >= rule.min_count))
    candidates = candidates[np.lexsort((waiting.keys[candidates], -waiting.count[candidates]))]
    free = ~is_living | expired
    room = len(candidates) if rule.rows is None else max(rule.rows - FIRST_ID - len(old), 0)
    displaced = np.flatnonzero(is_living & ~expired & (last_seen < rule.day))
    displaced = displaced[np.lexsort((displaced, count[displaced], last_seen[displaced]))]
    displaced = displaced[: max(len(candidates) - room - int(free.sum()), 0)]
    free[displaced] = True
    free_places = np.flatnonzero(free)
    chosen = candidates[: len(free_places) + room]
    again = free_places[: len(chosen)]
    new = np.concatenate([again, len(old) + np.arange(len(chosen) - len(again))])
    still = np.ones(len(waiting.keys), np.bool_)
    still[chosen] = False
    evicted = Waiting(old.keys[displaced], today[displaced], count[displaced], last_seen[displaced])
    values = Values(
        _placed(old.keys, new, waiting.keys[chosen]),
        _placed(~free, new, True),
        _placed(np.where(free, 0, count), new, waiting.count[chosen]),
        _placed(old.generation, new, np.concatenate([old.generation[again] + 1, new[len(again) :] * 0])),
        _placed(old.given_day, new, rule.day),
        _placed(np.where(free, old.last_seen, last_seen), new, rule.day),
    )
    joined = Waiting.joined([waiting.take(still), evicted])
    return Grown(values, joined, new, ~free, int(expired.sum()) + len(displaced), len(again))


def _placed(old: NDArray[Any], places: NDArray[np.int64], new: Any) -> NDArray[Any]:
    """``old``, made longer where it must be, with ``new`` at ``places``."""
    length = max(len(old), int(places.max(initial=-1)) + 1)
    out = np.zeros(length, old.dtype)
    out[: len(old)] = old
    out[places] = new
    return out
