"""Sparse values: from keys to ids.

hash   0 for a missing value, else 1 + reduce_hash(mix(key), n - 1)
vocab  0 for a missing value, 1 for one that is not in the vocabulary, else the vocabulary's
"""

import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.read.fields import parse_string
from dlrm_app.preprocess.units.dictionary import Columns
from dlrm_app.preprocess.units.hashing import MISSING_KEY, mix, next_slot, reduce_hash

MISSING_ID, RARE_ID, FIRST_ID = 0, 1, 2
"""Ids of a missing value, of a rare one (vocab), and of a vocabulary's first value."""

_loading = threading.Lock()

TABLE_FILL = 0.7
TABLE_BYTES = 12
"""Bytes per slot of a vocabulary in memory; ``TABLE_FILL`` of the slots are taken."""


class SparseEncoder:
    """Columns as the manifest states them, ready to apply. ``folder`` is the dataset's, with its vocabularies."""

    def __init__(self, columns: Sequence[SparseColumn], folder: Path) -> None:
        for column in columns:
            if column.encoding["kind"] not in ("hash", "vocab"):
                raise ValueError(f"no such sparse encoding: {column.encoding}")
        self._sizes = np.array([column.num_embeddings for column in columns], np.int64)
        self._tables = [
            load_vocabulary(folder / column.encoding["file"]) if column.encoding["kind"] == "vocab" else None
            for column in columns
        ]

    def apply(self, keys: Columns, first: int = 0) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(the id of every key, one column behind the other, how many of each column are missing).

        ``keys`` [C]: of the columns from number ``first`` on.
        """
        ids = np.empty(int((keys.ends - keys.begins).sum()), np.int32)
        missing = np.zeros(len(keys), np.int64)
        sizes, tables = self._sizes[first : first + len(keys)], self._tables[first : first + len(keys)]
        if not any(tables):
            _hash_columns(keys.values, keys.begins, keys.ends, sizes, ids, missing)
            return ids, missing
        at = 0
        for c, table in enumerate(tables):
            out = ids[at : at + len(keys[c])]
            missing[c] = (
                _hashed(keys[c], sizes[c], out) if table is None else _looked_up(keys[c], *table, out)
            )
            at += len(out)
        return ids, missing


def load_vocabulary(path: Path) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """vocab/<feature>.parquet as an open table (keys, ids), read once per process as long as it is the same file."""
    status = path.stat()
    with _loading:  # else threads that start together would each load it
        return _load(path, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=4096)
def _load(path: Path, modified_ns: int, inode: int) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    table = pq.read_table(path, columns=["value", "id"])
    values = table.column("value").combine_chunks()
    keys = _string_keys(values) if str(values.type) == "string" else numbers_of(values).astype(np.uint64)
    return build_table(keys, numbers_of(table.column("id")).astype(np.int32))


def build_table(
    keys: NDArray[np.uint64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Keys and ids by slot; -1 is the id of a free slot."""
    size = int(len(keys) / TABLE_FILL) + 8
    table_keys, table_ids = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
    _fill_table(keys, ids, table_keys, table_ids)
    return table_keys, table_ids


def _string_keys(values: Any) -> NDArray[np.uint64]:
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    keys = np.empty(len(values), np.uint64)
    _keys_of_strings(text, bounds, keys)
    return keys


@njit(nogil=True, cache=True)
def _keys_of_strings(text, bounds, keys):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(keys)):
        keys[i], _ = parse_string(text, np.int64(bounds[i]), np.int64(bounds[i + 1]), -1)


@njit(nogil=True, cache=True)
def _hashed(keys, num_embeddings, ids):  # type: ignore[no-untyped-def]  # compiled
    count = 0
    size = np.uint64(num_embeddings - 1)
    for i in range(len(keys)):
        is_missing = keys[i] == MISSING_KEY
        hashed = np.int32(1) + np.int32(reduce_hash(mix(keys[i]), size))
        ids[i] = MISSING_ID if is_missing else hashed
        count += is_missing
    return count


@njit(nogil=True, cache=True)
def _hash_columns(keys, begins, ends, sizes, ids, missing):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for c in range(len(begins)):
        behind = at + ends[c] - begins[c]
        missing[c] = _hashed(keys[begins[c] : ends[c]], sizes[c], ids[at:behind])
        at = behind


@njit(nogil=True, cache=True)
def _fill_table(keys, ids, table_keys, table_ids):  # type: ignore[no-untyped-def]  # compiled
    size = len(table_ids)
    for i in range(len(keys)):
        slot = np.int64(reduce_hash(mix(keys[i]), size))
        while table_ids[slot] >= 0:
            slot = next_slot(slot, size)
        table_keys[slot] = keys[i]
        table_ids[slot] = ids[i]


@njit(nogil=True, cache=True)
def _looked_up(keys, table_keys, table_ids, ids):  # type: ignore[no-untyped-def]  # compiled
    count = 0
    size = len(table_ids)
    for i in range(len(keys)):
        key = keys[i]
        if key == MISSING_KEY:
            ids[i] = MISSING_ID
            count += 1
            continue
        slot = np.int64(reduce_hash(mix(key), size))
        while table_ids[slot] >= 0 and table_keys[slot] != key:
            slot = next_slot(slot, size)
        number = table_ids[slot]
        ids[i] = number if number >= 0 else RARE_ID
    return count
