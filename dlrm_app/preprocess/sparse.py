"""Sparse values: from keys to ids.

hash   0 for a missing value, else 1 + reduce_hash(mix(key), n - 1)
vocab  0 for a missing value, 1 for one that is not in the vocabulary, else the vocabulary's
"""

import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

from dlrm_app.preprocess.fields import parse_string
from dlrm_app.preprocess.hashing import MISSING_KEY, mix, next_place, reduce_hash

MISSING_ID, RARE_ID, FIRST_ID = 0, 1, 2
"""Ids of a missing value, of a rare one (vocab), and of a vocabulary's first value."""

_loading = threading.Lock()

TABLE_FILL = 0.7
TABLE_BYTES = 12
"""Bytes per place of a vocabulary in memory; ``TABLE_FILL`` of the places are taken."""


class SparseEncoder:
    """``encoding`` as the manifest states it, ready to apply. ``folder`` is the dataset's, with its vocabularies."""

    def __init__(self, encoding: dict[str, Any], num_embeddings: int, folder: Path) -> None:
        self._num_embeddings = num_embeddings
        self._table: tuple[NDArray[np.uint64], NDArray[np.int32]] | None = None
        if encoding["kind"] == "vocab":
            self._table = load_vocabulary(folder / encoding["file"])
        elif encoding["kind"] != "hash":
            raise ValueError(f"no such sparse encoding: {encoding}")

    def apply(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], int]:
        """(the id of every key, how many are missing)."""
        ids = np.empty(len(keys), np.int32)
        if self._table is None:
            missing = _hashed(keys, self._num_embeddings, ids)
        else:
            missing = _looked_up(keys, *self._table, ids)
        return ids, int(missing)


def load_vocabulary(path: Path) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """vocab/<feature>.parquet as an open table (keys, ids), read once per process as long as it is the same file."""
    status = path.stat()
    with _loading:  # else threads that start together would each load it
        return _load(path, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=4096)
def _load(path: Path, modified_ns: int, inode: int) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    table = pq.read_table(path, columns=["value", "id"])
    values = table.column("value").combine_chunks()
    keys = _string_keys(values) if str(values.type) == "string" else values.to_numpy().astype(np.uint64)
    return build_table(keys, table.column("id").to_numpy().astype(np.int32))


def build_table(
    keys: NDArray[np.uint64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Keys and ids by place; -1 is the id of a free place."""
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
def _fill_table(keys, ids, table_keys, table_ids):  # type: ignore[no-untyped-def]  # compiled
    size = len(table_ids)
    for i in range(len(keys)):
        place = np.int64(reduce_hash(mix(keys[i]), size))
        while table_ids[place] >= 0:
            place = next_place(place, size)
        table_keys[place] = keys[i]
        table_ids[place] = ids[i]


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
        place = np.int64(reduce_hash(mix(key), size))
        while table_ids[place] >= 0 and table_keys[place] != key:
            place = next_place(place, size)
        found = table_ids[place]
        ids[i] = found if found >= 0 else RARE_ID
    return count
