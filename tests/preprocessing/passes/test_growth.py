"""Days of a vocabulary, against dictionaries that follow the documented rules value by value."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.encoding.columns import VocabularyRule
from dlrm_app.encoding.sparse import FIRST_ID
from dlrm_app.preprocessing.passes.growth import OWNERS, WAITING, GrownVocabulary, grow

ROWS = st.lists(st.integers(0, 12), max_size=25)
DAYS = st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=7)
"""Of each day the values of its training rows, and of its other rows."""


@dataclass
class Known:
    count: int
    last_seen: int


@dataclass
class SlowVocabulary:
    """``owners``: the value of each id, None for a free one; values that wait have no id."""

    values: dict[int, Known] = field(default_factory=dict)
    owners: list[int | None] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)

    def see(self, rows: list[int], others: list[int], rule: VocabularyRule) -> None:
        for value in rows:
            known = self.values.setdefault(value, Known(0, rule.day))
            known.count, known.last_seen = known.count + 1, rule.day
        for value in others:
            if value in self.values:
                self.values[value].last_seen = rule.day
        if rule.expire_days is not None:
            for value in [v for v, k in self.values.items() if rule.day - k.last_seen >= rule.expire_days]:
                self._free(value)
                del self.values[value]
        ready = [
            value
            for value in sorted(set(rows) - set(self.owners), key=lambda v: (-self.values[v].count, v))
            if self.values[value].count >= rule.min_count
        ]
        room = len(ready) if rule.rows is None else rule.rows - FIRST_ID - len(self.owners)
        owners = [value for value in self.owners if value is not None]
        old = sorted(
            owners, key=lambda v: (self.values[v].last_seen, self.values[v].count, self.owners.index(v))
        )
        old = [value for value in old if self.values[value].last_seen < rule.day]
        while old and len(ready) > room + self.owners.count(None):
            self._free(old.pop(0))
        for value in ready:
            if None in self.owners:
                number = self.owners.index(None)
                self.owners[number] = value
                self.generations[number] += 1
            elif room > 0:
                self.owners.append(value)
                self.generations.append(0)
                room -= 1

    def _free(self, value: int) -> None:
        if value in self.owners:
            self.owners[self.owners.index(value)] = None


def see(grown: GrownVocabulary, rows: list[int], others: list[int], rule: VocabularyRule) -> GrownVocabulary:
    """A day, as the passes give it to ``grow``."""
    old = grown.owners
    ids = {int(owner["key"]): at for at, owner in enumerate(old) if owner["is_living"]}
    today, is_seen = np.zeros(len(old), np.int64), np.zeros(len(old), np.bool_)
    waiting = {int(each["key"]): [int(each["count"]), int(each["last_seen"]), 0] for each in grown.waiting}
    for value in rows + others:
        if value in ids:
            is_seen[ids[value]] = True
        elif value in waiting:
            waiting[value][1] = rule.day
    for value in rows:
        if value in ids:
            today[ids[value]] += 1
        else:
            entry = waiting.setdefault(value, [0, rule.day, 0])
            entry[0] += 1
            entry[2] += 1
    entries = np.array([(key, *entry) for key, entry in waiting.items()], WAITING)
    return grow(old, today, is_seen, entries, rule)


NOTHING = GrownVocabulary(
    np.empty(0, OWNERS), np.empty(0, WAITING), np.empty(0, np.int64), np.empty(0, np.bool_), 0, 0
)


@given(DAYS, st.integers(1, 3), st.none() | st.integers(FIRST_ID + 1, 9), st.none() | st.integers(1, 4))
def test_days_are_what_the_rules_say_of_single_values(
    days: list[tuple[list[int], list[int]]], min_count: int, rows: int | None, expire_days: int | None
) -> None:
    slow, grown = SlowVocabulary(), NOTHING
    for day, (seen, others) in enumerate(days, 1):
        rule = VocabularyRule(day, min_count, rows, expire_days)
        before = list(slow.owners)
        slow.see(seen, others, rule)
        grown = see(grown, seen, others, rule)
        now = grown.owners
        owners = [int(owner["key"]) if owner["is_living"] else None for owner in now]
        assert owners == slow.owners
        assert now["generation"].tolist() == slow.generations
        living = now[now["is_living"]][["key", "count", "last_seen"]].tolist()
        assert all(slow.values[key] == Known(count, last_seen) for key, count, last_seen in living)
        new = [at for at, owner in enumerate(owners) if owner is not None and before[at : at + 1] != [owner]]
        assert sorted(grown.new.tolist()) == new
        assert (now["given_day"][new] == day).all()
        waiting = {int(w["key"]): Known(int(w["count"]), int(w["last_seen"])) for w in grown.waiting}
        assert waiting == {value: known for value, known in slow.values.items() if value not in owners}
        lost = [value for value in before if value is not None and value not in owners]
        assert grown.num_expired == len(lost)


@given(DAYS, st.integers(1, 3))
def test_any_days_make_the_vocabulary_of_one_pass(
    days: list[tuple[list[int], list[int]]], min_count: int
) -> None:
    grown, ids = NOTHING, {}
    for day, (rows, _) in enumerate(days, 1):
        grown = see(grown, rows, [], VocabularyRule(day, min_count))
        now = {int(key): at for at, key in enumerate(grown.owners["key"])}
        assert now.items() >= ids.items()
        ids = now
    whole = see(NOTHING, [value for rows, _ in days for value in rows], [], VocabularyRule(1, min_count))
    counts = [dict(g.owners[["key", "count"]].tolist()) for g in (grown, whole)]
    assert counts[0] == counts[1]
