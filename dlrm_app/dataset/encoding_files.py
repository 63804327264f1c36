"""Reads, writes and copies the files that encoding a raw row needs: vocab/ and target/, and vectors/ beside them.

A file is accepted only if its checksum is the one in the manifest, and if its table fits the column.
"""

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.checksums import checksum, file_difference
from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.lineage import Growth
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.errors import DataError, Problem, first_line
from dlrm_app.files import written_whole
from dlrm_app.records import Json

_CURE = "copy the dataset folder again from where it is whole, or preprocess again"


BEFORE_ALL_DAYS = -(1 << 31)


@dataclass(frozen=True)
class VocabularyRows:
    """The history of every id of a column [num_embeddings]. Ids without a history have zeros.

    generation: times that the id was given again; given_day: the day on which it was given to its value, last_seen: the
    last day with that value, both as numbers (``text.day_number``), BEFORE_ALL_DAYS if unknown; count: rows.
    """

    generation: NDArray[np.int32]
    given_day: NDArray[np.int32]
    last_seen: NDArray[np.int32]
    count: NDArray[np.int64]


def read_vocabulary(folder: Path, column: SparseColumn) -> pa.Table:
    """The ``value`` and ``id`` of each value of the vocabulary. Raises DataError if the file has changed."""
    return _read_vocabulary(folder, column, ["value", "id"]).drop_null()


def read_rows(folder: Path, column: SparseColumn) -> VocabularyRows:
    """The history of the ids of ``column``, which may be encoded in any way.

    Raises DataError as ``read_vocabulary`` does.
    """
    days = {"generation": 0, "given_day": BEFORE_ALL_DAYS, "last_seen": BEFORE_ALL_DAYS}
    arrays = {name: np.full(column.num_embeddings, value, np.int32) for name, value in days.items()}
    counts = np.zeros(column.num_embeddings, np.int64)
    if column.encoding["kind"] == "vocab":
        first = column.encoding["rare_id"] + 1
        table = _read_vocabulary(folder, column, ["id", "count", *days])
        counts[first:] = numbers_of(table.column("count"))
        for name in days.keys() & set(table.column_names):
            arrays[name][first:] = numbers_of(table.column(name))
    return VocabularyRows(**arrays, count=counts)


def ids_known_on(folder: Path, column: SparseColumn, day: int) -> NDArray[np.int32]:
    """[num_embeddings] each id of a vocabulary as it was known on the day of this number: rare if it was given later.

    Raises DataError as ``read_vocabulary`` does.
    """
    ids = np.arange(column.num_embeddings, dtype=np.int32)
    ids[read_rows(folder, column).given_day > day] = column.encoding["rare_id"]
    return ids


def read_waiting(
    folder: Path, growth: Growth
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
    """Returns (keys, counts, last days seen) of values that wait for an id. Raises DataError for a changed file."""
    rule = {"file": growth.waiting_file, "checksum": growth.waiting_checksum}
    table = _read(folder, rule, ["key", "count", "last_seen"], growth.waiting)
    keys, counts, last_seen = (numbers_of(column) for column in table.columns)
    return keys, counts, last_seen


def _read_vocabulary(folder: Path, column: SparseColumn, names: list[str]) -> pa.Table:
    """A line for each id, from the first value's id on; ``value`` is null if the id is free."""
    first = column.encoding["rare_id"] + 1
    table = _read(folder, column.encoding, names, column.num_embeddings - first, nullable={"value"})
    if not np.array_equal(numbers_of(table.column("id")), np.arange(first, column.num_embeddings)):
        rule = f"does not give the ids from {first} on in their order"
        raise DataError(Problem(str(folder / column.encoding["file"]), rule, _CURE))
    return table


def read_clicks(
    folder: Path, transform: Json, num_ids: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """(training rows, their clicks, the target column's value) of each id. Rows may count by weights.

    Raises DataError if the file has changed.
    """
    table = _read(folder, transform, ["rows", "clicks", "log_odds"], num_ids)
    rows, clicks, log_odds = (numbers_of(column) for column in table.columns)
    if not (np.isfinite(log_odds).all() and ((clicks >= 0) & (clicks <= rows)).all()):
        rule = "has more clicks than rows, or values that are not finite"
        raise DataError(Problem(str(folder / transform["file"]), rule, _CURE))
    return rows, clicks, log_odds.astype(np.float32)


def write_file(path: Path, columns: dict[str, pa.Array], **layout: object) -> str:
    """Writes a Parquet file for encoding; returns its checksum."""
    path.parent.mkdir(exist_ok=True)
    with written_whole(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd", **layout)
    return checksum(path)


def _refuse_difference(folder: Path, rule: Json) -> None:
    if difference := file_difference(folder / rule["file"], None, rule["checksum"]):
        raise DataError(replace(difference, cure=_CURE))


def _read(
    folder: Path, rule: Json, columns: list[str], rows: int, nullable: Collection[str] = ()
) -> pa.Table:
    """Reads the ``columns`` that the file has."""
    path = folder / rule["file"]
    try:
        _refuse_difference(folder, rule)
        with pq.ParquetFile(path) as file:
            table = file.read([name for name in columns if name in file.schema_arrow.names])
    except (OSError, pa.ArrowException) as error:
        raise DataError(Problem(str(path), f"cannot be read ({first_line(error)})", _CURE)) from error
    if len(table) != rows or any(
        table.column(name).null_count for name in table.column_names if name not in nullable
    ):
        raise DataError(
            Problem(
                str(path), f"has {len(table):,} lines, the manifest says {rows:,}, all with values", _CURE
            )
        )
    return table


def encoding_file_problems(manifest: Manifest) -> list[Problem]:
    """A problem for each file for encoding that has changed."""
    folder = manifest.folder
    problems: list[Problem] = []
    sizes = {column.name: column.num_embeddings for column in manifest.sparse}
    looks: dict[str, Callable[[], object]] = {}
    for column in manifest.sparse:
        if column.encoding["kind"] == "vocab":
            looks[column.encoding["file"]] = partial(read_vocabulary, folder, column)
        if "vectors" in column.encoding and not manifest.lacks_vectors:
            vectors = column.encoding["vectors"]
            looks[vectors["file"]] = partial(_refuse_difference, folder, vectors)
    for rule in [column.transform for column in manifest.dense]:
        if rule["kind"] == "target":
            looks[rule["file"]] = partial(read_clicks, folder, rule, sizes[rule["column"]])
            if contents := rule.get("contents"):
                looks[contents["file"]] = partial(_refuse_difference, folder, contents)
    for growth in manifest.lineage.growth if manifest.lineage else ():
        if growth.waiting_file:
            looks[growth.waiting_file] = partial(read_waiting, folder, growth)
    for look in looks.values():
        try:
            look()
        except DataError as error:
            problems += error.problems
    return problems


def verify_encoding_files(manifest: Manifest) -> None:
    """Raises DataError naming every file for encoding that has changed."""
    if problems := encoding_file_problems(manifest):
        raise DataError(Problem(str(manifest.folder), "cannot encode raw rows"), *problems)


def copy_encoding_files(manifest: Manifest, folder: Path) -> None:
    """Copies the files for encoding and for the next growth to ``folder``. Raises DataError if one has changed."""
    verify_encoding_files(manifest)
    for file in manifest.encoding_files:
        target = folder / file
        target.parent.mkdir(exist_ok=True)
        with written_whole(target) as temporary:
            shutil.copyfile(manifest.folder / file, temporary)
