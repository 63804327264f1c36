"""Sparse values: keys → ids, by 64-bit functions that are specified in docs/how-to/preprocessing.md and never change.

A key's *hash* is ``mix(key)``; among n ids the hash takes ``(hash >> 32) * n >> 32``.
hash   0 for a missing value, else 1 + reduce_hash(mix(key), n - 1)
vocab  0 for a missing value, 1 for a value that is not in the vocabulary, else the vocabulary's id
Both can be made multi-hot by ``expand``.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.dictionary import JaggedColumns
from dlrm_app.dataset.encoding_files import read_vocabulary
from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import empty_slots, find_slot, mix, reduce_hash
from dlrm_app.logs.raw_columns import RawList, RepeatedList
from dlrm_app.logs.strings import MISSING_KEY, parse_string
from dlrm_app.records import Json

MISSING_ID, RARE_ID, FIRST_ID = 0, 1, 2
"""Ids of a missing value, of a rare one (vocab), and of a vocabulary's first value."""

TABLE_FILL = 0.7
TABLE_BYTES = 12
"""Bytes per slot of a vocabulary in memory; ``TABLE_FILL`` of the slots are taken."""
OpenTable = tuple[NDArray[np.uint64], NDArray[np.int32]]
"""Keys and ids by slot, see ``kernels.hashing``."""
T = TypeVar("T")
_loading = threading.Lock()
_loaded: dict[tuple[object, ...], object] = {}
"""The cache of ``once_per_file``."""


@njit(nogil=True, cache=True)
def _fill_table(keys, ids, slots, table_ids):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(keys)):
        slot = find_slot(keys[i], slots)
        slots[slot] = keys[i]
        table_ids[slot] = ids[i]


@njit(nogil=True, cache=True)
def look_up(keys, slots, table_ids, ids):  # type: ignore[no-untyped-def]  # compiled
    """Writes the id of every key into ``ids``; returns the numbers of missing keys and of those not in the table."""
    missing = unseen = 0
    for i in range(len(keys)):
        if keys[i] == MISSING_KEY:
            ids[i] = MISSING_ID
            missing += 1
            continue
        slot = find_slot(keys[i], slots)
        is_unseen = slots[slot] == MISSING_KEY
        ids[i] = RARE_ID if is_unseen else table_ids[slot]
        unseen += is_unseen
    return missing, unseen


class EncodedKeys(NamedTuple):
    """The ``ids`` of columns [C], one after another, and for each column how many keys are ``missing``, and how many
    its vocabulary has not seen; hashing knows every key.
    """

    ids: NDArray[np.int32]
    missing: NDArray[np.int64]
    unseen: NDArray[np.int64]


class SparseEncoder:
    """Encodes ``columns`` of the manifest. ``folder``: the dataset's folder, with its vocabularies."""

    def __init__(self, columns: Sequence[SparseColumn], folder: Path) -> None:
        for column in columns:
            if column.encoding["kind"] not in ("hash", "vocab"):
                raise ValueError(f"no such sparse encoding: {column.encoding}")
        self._sizes = np.array([column.num_embeddings for column in columns], np.int64)
        self._tables = [
            load_vocabulary(folder, column) if column.encoding["kind"] == "vocab" else None
            for column in columns
        ]

    def apply(self, keys: JaggedColumns[np.uint64]) -> EncodedKeys:
        """Encodes ``keys`` [C]."""
        ids = np.empty(int((keys.ends - keys.begins).sum()), np.int32)
        missing, unseen = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        if not len(ids):  # as with few rows, where compiled calls take most of the time
            return EncodedKeys(ids, missing, unseen)
        if not any(self._tables):
            _hash_columns(keys.values, keys.begins, keys.ends, self._sizes, ids, missing)
            return EncodedKeys(ids, missing, unseen)
        at = 0
        for c, table in enumerate(self._tables):
            column_keys = keys[c]
            out = ids[at : at + len(column_keys)]
            if table is None:
                missing[c] = _hashed(column_keys, self._sizes[c], out)
            else:
                missing[c], unseen[c] = look_up(column_keys, *table, out)
            at += len(out)
        return EncodedKeys(ids, missing, unseen)

    def apply_to_lists(self, lists: RawList) -> EncodedKeys:
        """Encodes the elements of ``lists``, of one column; a list that all rows share once, and repeats its ids."""
        if not isinstance(lists, RepeatedList):
            return self.apply(JaggedColumns.joined([lists.elements]))
        rows, (ids, missing, unseen) = len(lists.ends) - 1, self.apply(JaggedColumns.joined([lists.first]))
        return EncodedKeys(np.tile(ids, rows), missing * rows, unseen * rows)


def once_per_file(path: Path, rule: Json, num_ids: int, load: Callable[[], T]) -> T:
    """Calls ``load`` once per process, as long as ``path`` is the same file with the checksum of ``rule``."""
    status = path.stat() if path.is_file() else None  # load raises if it is missing
    version = (path, rule["checksum"], num_ids, status and (status.st_mtime_ns, status.st_ino))
    with _loading:  # otherwise several threads would load it at once
        if version not in _loaded:
            _loaded[version] = load()
        return cast(T, _loaded[version])


def open_table(keys: NDArray[np.uint64], ids: NDArray[np.integer]) -> OpenTable:
    """The table for ``look_up``, from distinct ``keys`` [n] and their ``ids`` [n]."""
    size = int(len(keys) / TABLE_FILL) + 8
    slots, table_ids = empty_slots(size), np.empty(size, np.int32)
    _fill_table(keys, ids.astype(np.int32), slots, table_ids)
    return slots, table_ids


def load_vocabulary(folder: Path, column: SparseColumn) -> OpenTable:
    """Loads the vocabulary of ``column``. Raises DataError like ``read_vocabulary``."""

    def load() -> OpenTable:
        table = read_vocabulary(folder, column)
        return open_table(keys_of(table.column("value").combine_chunks()), numbers_of(table.column("id")))

    return once_per_file(folder / column.encoding["file"], column.encoding, column.num_embeddings, load)


def keys_of(values: pa.Array) -> NDArray[np.uint64]:
    """The keys of raw values."""
    if values.type != pa.string():
        return numbers_of(values).astype(np.uint64)
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


def hash_ids(keys: NDArray[np.uint64], num_embeddings: int) -> NDArray[np.int32]:
    """The ids of ``keys`` by hashing."""
    ids = np.empty(len(keys), np.int32)
    _hashed(keys, num_embeddings, ids)
    return ids


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


def expand(ids: NDArray[np.int32], size: int, num_embeddings: int, column: int) -> NDArray[np.int32]:
    """Multi-hot ids [n * size] by MLPerf's rule: every id itself, followed by ``size - 1`` ids that belong to it.

    MLPerf's DLRM-DCNv2 draws them in advance, uniformly, into a matrix for every row of every table
    (facebookresearch/dlrm, torchrec_dlrm/multi_hot.py). Here they are hashes of (``column``'s index, id, number), with
    the same distribution without 34 GB of matrices.
    """
    out = np.empty(len(ids) * size, np.int32)
    _expand(ids, size, num_embeddings, column, out)
    return out


@njit(nogil=True, cache=True)
def _expand(ids, size, num_embeddings, column, out):  # type: ignore[no-untyped-def]  # compiled
    salt = mix(np.uint64(column + 1))
    for i in range(len(ids)):
        out[i * size] = ids[i]
        for number in range(1, size):
            key = salt ^ (np.uint64(ids[i]) | (np.uint64(number) << np.uint64(32)))
            out[i * size + number] = np.int32(reduce_hash(mix(key), num_embeddings))
