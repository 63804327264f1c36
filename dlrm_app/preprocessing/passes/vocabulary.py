"""Makes vocabularies: adds up the counts of all units, feature by feature, as many buckets at a time as memory allows.

Ids are in the order of falling counts, equal counts by key. A vocabulary that grows begins with its parent's, by the
rules of ``growth``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.encoding_files import (
    BEFORE_ALL_DAYS,
    read_rows,
    read_vocabulary,
    read_waiting,
    write_file,
)
from dlrm_app.dataset.lineage import Growth
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.dates import day_number
from dlrm_app.encoding.columns import VocabularyRule
from dlrm_app.encoding.sparse import (
    FIRST_ID,
    MISSING_ID,
    RARE_ID,
    TABLE_BYTES,
    TABLE_FILL,
    keys_of,
    look_up,
    open_table,
)
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.journal import Finish, Journal
from dlrm_app.preprocessing.passes.counts import NUM_BUCKETS, KeyCounts, in_buckets, read_counts, read_texts
from dlrm_app.preprocessing.passes.growth import OWNERS, WAITING, GrownVocabulary, Records, grow
from dlrm_app.preprocessing.passes.plan import InputPlan
from dlrm_app.preprocessing.work.executor import NumberedItem
from dlrm_app.text import memory_text

_BYTES_PER_COUNT = 64
"""Memory for adding up one key of one unit, including sorting."""
_PART_BYTES = 1 << 27
"""The most memory for adding up one part of a feature."""
BYTES_PER_KEPT = 48
"""Memory for one value of a feature while its vocabulary is sorted."""
BYTES_PER_VALUE = math.ceil(TABLE_BYTES / TABLE_FILL)
"""Memory for one value while rows are encoded."""


@dataclass(frozen=True)
class MadeVocabulary:
    """A column whose vocabulary was made and, if it grows, its changes on this day."""

    column: SparseColumn
    growth: Growth | None = None


@dataclass(frozen=True)
class MakeVocabularies:
    """Makes the vocabulary of a group of features from the counts of all units: vocab/<first feature>.parquet.

    files: the counts of each unit
    entries: the number of keys of each feature in all files
    groups: the features that share each vocabulary
    rules: the rule of each feature
    grows: also makes waiting/<first feature>.parquet, with values that wait for an id
    parent: the dataset whose vocabularies grow; None on the first day. A feature that it lacks has its first day
    """

    title: ClassVar[str] = "adding up"
    reads: ClassVar[tuple[str, ...]] = ("study/*",)
    plan: InputPlan
    files: tuple[Path, ...]
    entries: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    rules: tuple[VocabularyRule, ...]
    grows: bool
    parent: Manifest | None
    memory_bytes: int
    journal: Journal[MadeVocabulary]

    def __call__(self, item: NumberedItem) -> Finish[MadeVocabulary]:
        features = self.groups[item.number]
        column, rule = self.plan.spec.sparse[features[0]], self.rules[features[0]]
        old, raw, waiting = _read_parent(self.parent, column.name, rule.day)
        today, is_seen, others, distinct = self._add_counts(features, rule, old, waiting)
        grown = grow(old, today, is_seen, others, rule)
        new_raw = _raw_values(column.kind or "", grown.owners["key"][grown.new], features, self.files)
        file = f"vocab/{column.name}.parquet"
        path, living = self.plan.output / file, np.flatnonzero(old["is_living"])
        values = pa.concat_arrays([new_raw, *raw])
        encoding = {
            "kind": "vocab",
            "file": file,
            "checksum": _write_vocabulary(path, grown, values, living, with_days=self.grows),
            "missing_id": MISSING_ID,
            "rare_id": RARE_ID,
            "raw": column.kind,
        }
        rare = distinct - len(grown.new)
        made = SparseColumn(
            column.name,
            FIRST_ID + len(grown.owners),
            encoding,
            multi_hot=column.separator is not None,
            distinct=distinct + int(np.count_nonzero(today)),
            collisions=rare if rare > 1 else 0,
        )
        unseen = int(others["today"].sum())
        growth = (
            self._write_growth(grown, features, int(today.sum()) + unseen, unseen) if self.grows else None
        )
        return self.journal.begin(item.name).finish(MadeVocabulary(made, growth))

    def _add_counts(
        self, features: Sequence[int], rule: VocabularyRule, old: Records, waiting: Records
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], Records, int]:
        """Adds up the counts, a few buckets at a time.

        Returns (rows of studied splits with each of the ``old`` values; True for old values that any row has; the
        values without an id; the number of these that were seen today). New values that no studied row has are left
        out, and rare ones too if nothing grows.
        """
        living, num_before = np.flatnonzero(old["is_living"]), len(old) + len(waiting)
        places = np.concatenate([living, np.arange(len(old), num_before)])
        table = open_table(np.concatenate([old["key"][living], waiting["key"]]), FIRST_ID + places)
        today, is_seen = np.zeros(num_before, np.int64), np.zeros(num_before, np.bool_)
        total = sum(self.entries[feature] for feature in features)
        num_parts = min(max(-(-total * _BYTES_PER_COUNT // _PART_BYTES), 1), NUM_BUCKETS)
        distinct, added = 0, [waiting]
        for first, last in pairwise(part * NUM_BUCKETS // num_parts for part in range(num_parts + 1)):
            new = KeyCounts()
            for file, feature in product(self.files, features):
                keys, counts = read_counts(file, feature, first, last)
                ids = np.empty(len(keys), np.int32)
                look_up(keys, *table, ids)
                is_new = ids == RARE_ID
                seen = ids[~is_new] - FIRST_ID
                today[seen] += counts[~is_new]  # a file has each key once
                is_seen[seen] = True
                new.add(keys[is_new], counts[is_new])
            found = new.sorted()
            distinct += int(np.count_nonzero(found.counts))
            is_kept = found.counts >= (1 if self.grows else rule.min_count)
            part = np.zeros(np.count_nonzero(is_kept), WAITING)
            part["key"], part["last_seen"] = found.keys[is_kept], rule.day
            part["count"] = part["today"] = found.counts[is_kept]
            added.append(part)
            refuse_if_too_large(len(old) + sum(map(len, added)), BYTES_PER_KEPT, self.memory_bytes)
        waiting["today"] = today[len(old) :]
        waiting["count"] += waiting["today"]
        waiting["last_seen"][is_seen[len(old) :]] = rule.day
        distinct += int(np.count_nonzero(waiting["today"]))
        return today[: len(old)], is_seen[: len(old)], np.concatenate(added), distinct

    def _write_growth(
        self, grown: GrownVocabulary, features: Sequence[int], lookups: int, unseen: int
    ) -> Growth:
        names = [self.plan.spec.sparse[feature].name for feature in features]
        file, waiting, digest = f"waiting/{names[0]}.parquet", grown.waiting, ""
        if len(waiting):
            order, _ = in_buckets(waiting["key"])
            history = {name: array_of(waiting[name][order]) for name in ("key", "count", "last_seen")}
            digest = write_file(self.plan.output / file, history)
        return Growth(
            names,
            values=int(np.count_nonzero(grown.owners["is_living"])),
            new=len(grown.new),
            given_again=grown.num_given_again,
            expired=grown.num_expired,
            waiting=len(waiting),
            lookups=lookups,
            unseen=unseen,
            waiting_file=file if digest else "",
            waiting_checksum=digest,
        )


def _raw_values(
    kind: str, keys: NDArray[np.uint64], features: Sequence[int], files: Sequence[Path]
) -> pa.Array:
    """The raw values of ``keys``: uint64 for hex, int64 for integer, strings."""
    if kind == "hex":
        return array_of(keys)
    if kind == "integer":
        return array_of(keys.view(np.int64))
    order = np.argsort(keys)
    places, texts = np.full(len(keys), -1, np.int64), [pa.array([], pa.string())]
    num_found = 0
    for file, feature in product(files, features if len(keys) else ()):
        unit_keys, unit_texts = read_texts(file, feature)
        spots = np.searchsorted(keys, unit_keys, sorter=order)
        candidates = order[np.minimum(spots, len(keys) - 1)]
        at = np.flatnonzero((keys[candidates] == unit_keys) & (places[candidates] < 0))
        places[candidates[at]] = np.arange(num_found, num_found + len(at))
        num_found += len(at)
        texts.append(unit_texts.take(array_of(at)))
    return pa.concat_arrays(texts).take(array_of(places))


def _read_parent(parent: Manifest | None, name: str, day: int) -> tuple[Records, list[pa.Array], Records]:
    """The state of the vocabulary of feature ``name`` before ``day``.

    Returns (the owners of its ids, the raw values of living owners, the values that wait for an id).
    """
    waiting = np.empty(0, WAITING)
    column = next((column for column in parent.sparse if column.name == name), None) if parent else None
    if parent is None or column is None:
        return np.empty(0, OWNERS), [], waiting
    rows, vocabulary = read_rows(parent.folder, column), read_vocabulary(parent.folder, column)
    raw = vocabulary.column("value").combine_chunks()
    places = numbers_of(vocabulary.column("id")) - FIRST_ID
    owners = np.zeros(column.num_embeddings - FIRST_ID, OWNERS)
    owners["key"][places], owners["is_living"][places] = keys_of(raw), True
    for field in ("count", "generation", "given_day", "last_seen"):
        owners[field] = getattr(rows, field)[FIRST_ID:]
    last_day = day_number(parent.lineage.day) if parent.lineage else day - 1
    for field in ("given_day", "last_seen"):
        owners[field][owners[field] == BEFORE_ALL_DAYS] = last_day
    for growth in parent.lineage.growth if parent.lineage else ():
        if growth.features[0] == name and growth.waiting_file:
            waiting = np.zeros(growth.waiting, WAITING)
            waiting["key"], waiting["count"], waiting["last_seen"] = read_waiting(parent.folder, growth)
    return owners, [raw], waiting


def _write_vocabulary(
    path: Path, grown: GrownVocabulary, raw: pa.Array, living: NDArray[np.int64], *, with_days: bool
) -> str:
    """Writes the vocabulary, a line for each id; returns its checksum.

    raw: the values of new ids, then of ids that were ``living`` before; with_days: also writes the days, for the next
    growth.
    """
    import pyarrow.compute as pc  # takes 0.04 s, which only vocabularies need

    owners, num_new = grown.owners, len(grown.new)
    places = np.full(len(owners), -1, np.int64)
    places[living] = np.arange(num_new, num_new + len(living))
    places[: len(grown.is_old)][~grown.is_old] = -1
    places[grown.new] = np.arange(num_new)
    lines = array_of(places)
    columns = {
        "value": raw.take(pc.if_else(pc.less(lines, 0), None, lines)),
        "id": array_of(np.arange(FIRST_ID, FIRST_ID + len(owners), dtype=np.int32)),
        "count": array_of(owners["count"]),
    }
    for name in ("generation", "given_day", "last_seen") if with_days else ():
        columns[name] = array_of(owners[name])
    # values are distinct and ids consecutive: this takes less than half the bytes, and old pages stay the same
    return write_file(path, columns, use_dictionary=False, column_encoding={"id": "DELTA_BINARY_PACKED"})


def refuse_if_too_large(entries: int, bytes_per_entry: int, memory_bytes: int) -> None:
    """Raises ConfigError if ``entries`` values do not fit in ``memory_bytes``."""
    needed = entries * bytes_per_entry
    if needed > memory_bytes:
        rule = (
            f"hold {entries:,} values or more, which take {memory_text(needed)} of memory, more than "
            f"memory_gib allows for them ({memory_text(memory_bytes)})"
        )
        cure = "raise memory_gib, or encoding.min_count, or set encoding.top_k, or use encoding=hash"
        raise ConfigError(Problem("the vocabularies", rule, cure))
