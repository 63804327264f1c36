"""Do the files of a dataset agree with its manifest: shards, vocabularies, rejected lines."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest, Shard, SparseColumn
from dlrm_app.dataset.shard_files import file_difference, row_group_difference
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.preprocess.encode.sparse import FIRST_ID
from dlrm_app.preprocess.read.parser import REJECTS
from dlrm_app.text import count


def check_files(manifest: Manifest, num_threads: int) -> tuple[list[str], set[str]]:
    """(every problem, the paths of the shards that are whole)."""
    folder = manifest.folder
    shards = manifest.shards
    problems: list[str] = []
    whole = set()
    with tqdm(desc="checksums", total=sum(s.bytes for s in shards), unit="B", unit_scale=True) as bar:
        results = map_in_order(
            lambda shard: _shard_problem(folder / shard.path, shard), shards, num_threads, num_threads
        )
        for shard, problem in zip(shards, results, strict=True):
            bar.update(shard.bytes)
            if problem:
                problems.append(problem)
            else:
                whole.add(shard.path)
    for column in manifest.sparse:
        problems += _vocabulary_problems(folder, column)
    return [*problems, *_reject_problems(manifest, folder)], whole


def _shard_problem(path: Path, shard: Shard) -> str | None:
    """What is wrong with a shard's bytes and row groups; None if it is as it was written."""
    try:
        if difference := file_difference(path, shard, checksums=True):
            return difference
        return row_group_difference(pq.read_metadata(path), path, shard)
    except (OSError, pa.ArrowException) as error:
        return f"{path} cannot be read: {error}"


def _vocabulary_problems(folder: Path, column: SparseColumn) -> list[str]:
    """A vocabulary must give the ids from FIRST_ID to the end of its table, each once, in order."""
    name = column.encoding.get("file")
    if name is None:
        return []
    try:
        with pq.ParquetFile(folder / name) as file:
            batches = (numbers_of(batch.column(0)) for batch in file.iter_batches(columns=["id"]))
            stop = _end_of_ids(batches)
    except FileNotFoundError:
        return [f"{name} is missing: new rows cannot be encoded as these were"]
    except (OSError, ValueError, pa.ArrowException) as error:
        return [f"{name} cannot be read: {error}"]
    if stop is None:
        return [f"{name} does not give the ids from {FIRST_ID} on in their order"]
    if stop != column.num_embeddings:
        return [
            f"{name} gives ids up to {stop - 1:,}, the manifest says that the table of {column.name} "
            f"has {column.num_embeddings:,} rows"
        ]
    return []


def _end_of_ids(batches: Iterable[np.ndarray]) -> int | None:
    stop = FIRST_ID
    for ids in batches:
        if not np.array_equal(ids, np.arange(stop, stop + len(ids))):
            return None
        stop += len(ids)
    return stop


def _reject_problems(manifest: Manifest, folder: Path) -> list[str]:
    expected = sum(split.rejects for split in manifest.splits.values())
    path = folder / REJECTS
    if not path.is_file():
        return [f"{REJECTS} is missing, which holds the {expected:,} lines left out"] if expected else []
    with path.open("rb") as file:
        num_lines = sum(1 for _ in file)
    if num_lines == expected:
        return []
    return [f"{REJECTS} holds {count(num_lines, 'line')}, the manifest says that {expected:,} were left out"]
