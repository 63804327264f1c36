"""Vocabularies that grow day by day: their days, the changes of a day, and the relation of two vocabularies.

A value keeps its id. A value that was not seen for long may lose it, and the id may then be given again, to another
value. The vocabularies that a dataset's vocabulary was grown from are its ancestors.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

from dlrm_app.dates import day_number
from dlrm_app.records import Json
from dlrm_app.table import Columns, Rows, integer, share
from dlrm_app.text import listed


@dataclass(frozen=True)
class Ancestor:
    """A vocabulary that another one was grown from. ``vocabulary``: ``vocabulary_of`` its columns."""

    vocabulary: str
    day: str


@dataclass(frozen=True)
class Growth:
    """The changes of a day to the vocabulary that ``features`` share.

    values: with an id; new: got an id this day; given_again: the new ones whose id another value had before; expired:
    lost their id; waiting: not seen often enough yet, or without room. lookups: values of this day's studied rows that
    are not missing; unseen: those of them that had no id before this day. waiting_file is empty if no value waits.
    """

    features: list[str]
    values: int
    new: int
    given_again: int
    expired: int
    waiting: int
    lookups: int
    unseen: int
    waiting_file: str
    waiting_checksum: str

    @property
    def unseen_share(self) -> float:
        """The share of lookups whose value had no id before this day."""
        return self.unseen / max(self.lookups, 1)


@dataclass(frozen=True)
class Lineage:
    """The days of a dataset's vocabularies.

    day: a date or a number; parent: the fingerprint of the dataset that it was grown from, None for the first;
    ancestors: from the first one to the parent; given_again: feature → the last day on which an id of it was given
    again. ``growth`` is empty if rows were encoded with the vocabularies of another dataset.
    """

    day: str
    parent: str | None = None
    ancestors: list[Ancestor] = field(default_factory=list)
    given_again: dict[str, str] = field(default_factory=dict)
    growth: list[Growth] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The files that the next growth needs, besides those for encoding."""
        return [growth.waiting_file for growth in self.growth if growth.waiting_file]


def vocabulary_of(columns: Json) -> str:
    """A hash of all encodings with a vocabulary, which identifies them. ``columns``: from ``describe_columns``."""
    rules = [(c["name"], c["encoding"]) for c in columns["sparse"] if c["encoding"]["kind"] == "vocab"]
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Relation:
    """The relation of a dataset's vocabularies to those that a model knows.

    newer: grown from the model's; older: the model's were grown from them. ``day``: the number of the older one's day.
    """

    kind: Literal["same", "newer", "older", "other"]
    day: int | None = None


def relate(known: Json, given: Json) -> Relation:
    """Finds the relation of the vocabularies of a dataset, ``given``, to those of the model's own dataset, ``known``.

    Both come from ``columns.describe_columns``. A pure function: it needs no files.
    """
    known_id, given_id = vocabulary_of(known), vocabulary_of(given)
    if known_id == given_id:
        return Relation("same")
    if (day := _days_of_ancestors(given).get(known_id)) is not None:
        return Relation("newer", day)
    if (day := _days_of_ancestors(known).get(given_id)) is not None:
        return Relation("older", day)
    return Relation("other")


def _days_of_ancestors(columns: Json) -> dict[str, int]:
    ancestors = columns.get("lineage", {}).get("ancestors", [])
    return {each["vocabulary"]: day_number(each["day"]) for each in ancestors}


def growth_table(lineage: Lineage) -> tuple[Columns, Rows]:
    """A table of the day's changes to each vocabulary, the largest unseen share first."""
    columns = ("vocabulary of", "values", "new", "given again", "expired", "waiting", "unseen")
    rows: Rows = [
        [
            listed(growth.features),
            *map(integer, (growth.values, growth.new, growth.given_again, growth.expired, growth.waiting)),
            share(growth.unseen_share),
        ]
        for growth in sorted(lineage.growth, key=lambda growth: -growth.unseen_share)
    ]
    return columns, rows
