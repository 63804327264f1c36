"""Grows a vocabulary by one day: values get ids, and lose them. Pure arithmetic over arrays.

A value that has been seen ``min_count`` times on all days up to today, and was seen today, gets an id: the most
frequent value first, equal counts by key; free ids before new ones, the lowest first. If there is no room, the value
that has not been seen for the longest time loses its id, the rarer one first, then the lower id; a value that was seen
today keeps its id. A value that has not been seen for ``expire_days`` is forgotten. So the result of a day depends only
on its rows and on the days before.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.encoding.columns import VocabularyRule
from dlrm_app.encoding.sparse import FIRST_ID

Records = NDArray[np.void]
_HISTORY = [("key", np.uint64), ("count", np.int64), ("last_seen", np.int32)]
"""``count``: rows of all days, including today's once they are added."""
WAITING = np.dtype([*_HISTORY, ("today", np.int64)])
"""A value without an id. ``today``: the rows of this day with it."""
OWNERS = np.dtype([*_HISTORY, ("generation", np.int32), ("given_day", np.int32), ("is_living", np.bool_)])
"""The value of an id, at place id - FIRST_ID. ``is_living`` is False if no value has the id."""


@dataclass(frozen=True)
class GrownVocabulary:
    """A vocabulary after a day: the OWNERS of its ids, and the WAITING values.

    ``num_expired``: the number of values that lost their ids, for either reason.
    """

    owners: Records
    waiting: Records
    new: NDArray[np.int64]
    """The places in ``owners`` of ids that were given today, in the order of giving."""
    is_old: NDArray[np.bool_]
    """[V]: True for an id that kept its value."""
    num_expired: int
    num_given_again: int


def grow(
    old: Records, today: NDArray[np.int64], is_seen: NDArray[np.bool_], waiting: Records, rule: VocabularyRule
) -> GrownVocabulary:
    """The vocabulary of the V OWNERS ``old`` after a day with ``today`` [V] rows of each value.

    ``is_seen`` [V]: True for a value of any row of the day, including val and test. ``waiting``: all values without an
    id.
    """
    now = old.copy()
    now["count"] += today
    now["last_seen"][is_seen] = rule.day
    is_living, expired = old["is_living"], np.zeros(len(old), np.bool_)
    if rule.expire_days is not None:
        expired = is_living & (rule.day - now["last_seen"] >= rule.expire_days)
        waiting = waiting[rule.day - waiting["last_seen"] < rule.expire_days]
    candidates = np.flatnonzero((waiting["today"] > 0) & (waiting["count"] >= rule.min_count))
    candidates = candidates[np.lexsort((waiting["key"][candidates], -waiting["count"][candidates]))]
    free = ~is_living | expired
    room = len(candidates) if rule.rows is None else max(rule.rows - FIRST_ID - len(old), 0)
    lacking = max(len(candidates) - room - int(free.sum()), 0)
    displaced = np.flatnonzero(is_living & ~expired & (now["last_seen"] < rule.day) & (lacking > 0))
    displaced = displaced[np.lexsort((displaced, now["count"][displaced], now["last_seen"][displaced]))]
    displaced = displaced[:lacking]
    free[displaced] = True
    free_places = np.flatnonzero(free)
    chosen = candidates[: len(free_places) + room]
    again = free_places[: len(chosen)]
    new = np.concatenate([again, len(old) + np.arange(len(chosen) - len(again))])
    evicted = np.zeros(len(displaced), WAITING)
    for name, _ in _HISTORY:
        evicted[name] = now[name][displaced]
    evicted["today"] = today[displaced]
    now["count"][free], now["is_living"] = 0, ~free
    now["generation"][again] += 1
    owners = np.concatenate([now, np.zeros(len(new) - len(again), OWNERS)])
    owners["key"][new], owners["count"][new] = waiting["key"][chosen], waiting["count"][chosen]
    owners["given_day"][new] = owners["last_seen"][new] = rule.day
    owners["is_living"][new] = True
    still_waiting = np.concatenate([np.delete(waiting, chosen), evicted])
    return GrownVocabulary(owners, still_waiting, new, ~free, int(expired.sum()) + len(displaced), len(again))
