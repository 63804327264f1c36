"""Vectors by raw value that a dataset keeps: a vocabulary of their own, and a file with a vector for each id.

The vocabulary is that of the file of vectors, so that a value has its vector whether a training row holds it or not.
Rows of missing values and of values without a vector are zeros. A newer file grows both: known values keep their ids
and take its vectors, new ones get the next ids, and values that it lacks keep what they have.

    DATASET/vocab/<column>.parquet   raw value → id
    DATASET/vectors/<column>.npy     [ids, W], float16 or float32
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.checksums import checksum
from dlrm_app.config.values import VectorType
from dlrm_app.dataset.arrow import VECTOR_TYPES, array_of
from dlrm_app.dataset.encoding_files import BEFORE_ALL_DAYS, read_rows, read_vocabulary, write_file
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.encoding.sparse import FIRST_ID, MISSING_ID, RARE_ID, keys_of, look_up, open_table
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import written_whole
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.logs.vector_files import VectorFile
from dlrm_app.records import Json
from dlrm_app.tables.vector_rows import VectorRows


@dataclass(frozen=True)
class VectorGrowth:
    """The values that a file of vectors has: known ones, those of them with another vector, and new ones."""

    known: int
    changed: int
    new: int


@dataclass(frozen=True)
class _Known:
    """What is known of the values before the file is read. ``ids``: of its values with a vector [V], with ``keys``."""

    values: list[pa.Array]
    keys: NDArray[np.uint64]
    given_day: NDArray[np.int32]
    vectors: NDArray[np.floating] | None

    @classmethod
    def of(cls, column: LogColumn, parent: Manifest | None) -> "_Known":
        before = {each.name: each for each in parent.sparse} if parent else {}
        if parent is None or column.name not in before:
            return cls([], np.empty(0, np.uint64), np.empty(0, np.int32), None)
        known = before[column.name]
        values = read_vocabulary(parent.folder, known).column("value").combine_chunks()
        days = read_rows(parent.folder, known).given_day[FIRST_ID:]
        rows = VectorRows.of(known.encoding["vectors"], parent.folder).open()
        return cls([values], keys_of(values), days, rows)


DAY = "{day}"
"""Stands for the vocabularies' day in the name of a file of vectors."""


def with_files_of(spec: Spec, day: str | None) -> Spec:
    """``spec`` with the files of vectors of ``day``."""
    if day is None:
        return spec
    named = (replace(c, file=c.file.replace(DAY, day)) if c.file else c for c in spec.derived)
    return replace(spec, derived=tuple(named))


def vector_file_problems(spec: Spec, base: Manifest | None, grows: bool) -> list[Problem]:
    """Problems of the files of vectors that are read, found in their footers. ``base``: the dataset whose encodings are
    used, or grown.
    """
    known = {column.name for column in base.sparse} if base and not grows else set()
    files = [_file_of(column) for column in spec.looked_up if column.name not in known]
    cure = "give encoding.day, or name a file"
    undated = [Problem(file.key, f"has {DAY}, and there is none", cure) for file in files if DAY in file.path]
    return undated or [problem for file in files if (problem := file.problem()) is not None]


def _file_of(column: LogColumn) -> VectorFile:
    return VectorFile(column.file or "", column.kind or "", f"file={column.file} of {column.name}")


def make_vector_table(
    column: LogColumn, output: Path, dtype: VectorType, parent: Manifest | None, day: int | None
) -> tuple[SparseColumn, VectorGrowth]:
    """Writes the vocabulary and the vectors of ``column`` to ``output``. Returns the dataset's column, and what is new.

    ``parent``: the dataset whose vocabularies grow, on ``day``. Raises DataError for a file that cannot be used.
    """
    known = _Known.of(column, parent)
    file = _file_of(column)
    new_values, new_keys = _new_values(file, known.keys)
    keys, num_known = np.concatenate([known.keys, new_keys]), len(known.keys)
    vocabulary = {
        "value": pa.concat_arrays([*known.values, *new_values]),
        "id": array_of(np.arange(FIRST_ID, FIRST_ID + len(keys), dtype=np.int32)),
        "count": array_of(np.zeros(len(keys), np.int64)),
    }
    if day is not None:
        days = np.concatenate([known.given_day, np.full(len(new_keys), day, np.int32)])
        vocabulary["generation"] = array_of(np.zeros(len(keys), np.int32))
        vocabulary["given_day"] = array_of(days)
        vocabulary["last_seen"] = array_of(np.full(len(keys), BEFORE_ALL_DAYS, np.int32))
    vocab, vectors = f"vocab/{column.name}.parquet", f"vectors/{column.name}.npy"
    encoding: Json = {
        "kind": "vocab",
        "file": vocab,
        "checksum": write_file(output / vocab, vocabulary, use_dictionary=False),
        "missing_id": MISSING_ID,
        "rare_id": RARE_ID,
        "raw": column.kind,
        "derived": column.derivation,
    }
    width, growth = _write_vectors(output / vectors, file, keys, num_known, known, dtype)
    encoding["vectors"] = {
        "file": vectors,
        "checksum": checksum(output / vectors),
        "width": width,
        "dtype": dtype,
    }
    is_list = column.separator is not None
    made = SparseColumn(
        column.name, FIRST_ID + len(keys), encoding, is_list, distinct=len(keys), collisions=0
    )
    return made, growth


def _new_values(file: VectorFile, known: NDArray[np.uint64]) -> tuple[list[pa.Array], NDArray[np.uint64]]:
    """The values of ``file`` that are not ``known``, and their keys. Raises DataError for a value that it has twice."""
    values, keys, table = [], [np.empty(0, np.uint64)], open_table(known, np.arange(len(known)) + FIRST_ID)
    seen = [np.empty(0, np.uint64)]
    for batch, batch_keys in file.read_keys():
        ids = np.empty(len(batch_keys), np.int32)
        look_up(batch_keys, *table, ids)
        is_new = ids == RARE_ID
        values.append(_as_stored(batch, batch_keys, file.kind).take(array_of(np.flatnonzero(is_new))))
        keys.append(batch_keys[is_new])
        seen.append(batch_keys)
    every, counts = np.unique(np.concatenate(seen), return_counts=True)
    if len(twice := every[counts > 1]):
        _refuse_twice(file, twice[0])
    return values or [pa.array([], pa.string())], np.concatenate(keys)


def _refuse_twice(file: VectorFile, key: np.uint64) -> None:
    for batch, keys in file.read_keys():
        if len(places := np.flatnonzero(keys == key)):
            rule = f"has the value {batch[int(places[0])].as_py()!r} twice"
            raise DataError(Problem(file.key, rule, "keep one vector of each value"))


def _as_stored(values: pa.Array, keys: NDArray[np.uint64], kind: str) -> pa.Array:
    """``values`` as a vocabulary keeps them: uint64 for hex, int64 for integer, strings."""
    if kind == "hex":
        return array_of(keys)
    return array_of(keys.view(np.int64)) if kind == "integer" else values.cast(pa.string())


def _write_vectors(
    path: Path, file: VectorFile, keys: NDArray[np.uint64], num_known: int, known: _Known, dtype: VectorType
) -> tuple[int, VectorGrowth]:
    """Writes the vector of each id. Returns their width, and what is new of the first ``num_known`` of the ``keys``."""
    table = open_table(keys, np.arange(len(keys)) + FIRST_ID)
    before, rows, num_changed, num_found = known.vectors, None, 0, 0
    path.parent.mkdir(exist_ok=True)
    with written_whole(path) as temporary:
        for ids, vectors in _numbered(file, table, dtype):
            if rows is None:
                width = vectors.shape[1]
                if before is not None and before.shape[1] != width:
                    rule = f"has vectors of {width} numbers, and those of before have {before.shape[1]}"
                    raise DataError(Problem(file.key, rule, "give vectors of the same model"))
                shape = FIRST_ID + len(keys), width
                rows = np.lib.format.open_memmap(temporary, "w+", VECTOR_TYPES[dtype], shape)
                rows[:FIRST_ID] = 0
                if before is not None:
                    rows[FIRST_ID : len(before)] = before[FIRST_ID:]
            old = ids < FIRST_ID + num_known
            num_found += int(old.sum())
            num_changed += int((rows[ids[old]] != vectors[old]).any(1).sum())
            rows[ids] = vectors
        if rows is None:
            raise DataError(Problem(file.key, "has no vector", "give a file with the values' vectors"))
        rows.flush()
    return rows.shape[1], VectorGrowth(num_found, num_changed, len(keys) - num_known)


def _numbered(
    file: VectorFile, table: tuple[NDArray[np.uint64], NDArray[np.int32]], dtype: VectorType
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.floating]]]:
    """(ids, their vectors as ``dtype``), many at a time. Raises DataError for numbers that ``dtype`` cannot hold."""
    limit = np.finfo(VECTOR_TYPES[dtype]).max
    for part in file.read():
        if part.vectors.size and (largest := np.abs(part.vectors).max()) > limit:
            rule = f"has the number {largest:.6g}, and {dtype} holds numbers up to {limit:.6g}"
            raise DataError(Problem(file.key, rule, "preprocess with vectors.dtype=fp32"))
        ids = np.empty(len(part.keys), np.int32)
        look_up(part.keys, *table, ids)
        yield ids, part.vectors.astype(VECTOR_TYPES[dtype])
