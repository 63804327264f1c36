"""The files that encoding a raw row takes, vocab/ and target/: read through one door, and copied to where rows are encoded.

A file counts only if its bytes are those that its manifest names, and if its table fits the column's.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.errors import DataError
from dlrm_app.files import file_difference, written_whole
from dlrm_app.text import bullets

_CURE = "copy the dataset folder again from where it is whole, or preprocess again"


def read_vocabulary(folder: Path, column: SparseColumn) -> pa.Table:
    """``value`` and ``id`` of each value that ``column`` knows. Raises DataError for anything else than was written."""
    first = column.encoding["rare_id"] + 1
    table = _read(folder, column.encoding, ["value", "id"], column.num_embeddings - first)
    if not np.array_equal(numbers_of(table.column("id")), np.arange(first, column.num_embeddings)):
        raise DataError(
            f"{folder / column.encoding['file']} does not give the ids from {first} on in their order: {_CURE}"
        )
    return table


def read_clicks(
    folder: Path, transform: dict[str, Any], num_ids: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """(training rows, their clicks, the target column's value) of each id. Raises DataError for anything else than was written."""
    table = _read(folder, transform, ["rows", "clicks", "log_odds"], num_ids)
    rows, clicks, log_odds = (numbers_of(column) for column in table.columns)
    if not (np.isfinite(log_odds).all() and ((clicks >= 0) & (clicks <= rows)).all()):
        raise DataError(
            f"{folder / transform['file']} has more clicks than rows, or values that are not finite: {_CURE}"
        )
    return rows, clicks, log_odds.astype(np.float32)


def _read(folder: Path, rule: dict[str, Any], columns: list[str], rows: int) -> pa.Table:
    path = folder / rule["file"]
    if "checksum" not in rule:
        raise DataError(
            f"the manifest of {folder} gives no checksum of {path}, as those of earlier versions: preprocess again"
        )
    try:
        if difference := file_difference(path, None, rule["checksum"]):
            raise DataError(f"{difference}: {_CURE}")
        table = pq.read_table(path, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}; {_CURE}") from error
    if len(table) != rows or any(column.null_count for column in table.columns):
        raise DataError(
            f"{path} has {len(table):,} lines, the manifest says {rows:,}, all with values: {_CURE}"
        )
    return table


def encoding_file_problems(manifest: Manifest) -> list[str]:
    """A problem for each file that encoding takes and that is not as it was written."""
    folder, problems = manifest.folder, []
    sizes = {column.name: column.num_embeddings for column in manifest.sparse}
    rules = [column.transform for column in manifest.dense]
    looks: dict[str, Callable[[], object]] = {
        c.encoding["file"]: partial(read_vocabulary, folder, c)
        for c in manifest.sparse
        if c.encoding["kind"] == "vocab"
    } | {
        rule["file"]: partial(read_clicks, folder, rule, sizes[rule["column"]])
        for rule in rules
        if rule["kind"] == "target"
    }
    for look in looks.values():
        try:
            look()
        except DataError as error:
            problems.append(str(error))
    return problems


def verify_encoding_files(manifest: Manifest) -> None:
    """Raises DataError naming every file that encoding takes and that is not as it was written."""
    if problems := encoding_file_problems(manifest):
        raise DataError(f"{manifest.folder} cannot encode raw rows:\n{bullets(problems)}")


def copy_encoding_files(manifest: Manifest, folder: Path) -> None:
    """Copies the files that encoding takes to ``folder``. Raises DataError if one is not as it was written."""
    verify_encoding_files(manifest)
    for file in manifest.encoding_files:
        target = folder / file
        target.parent.mkdir(exist_ok=True)
        with written_whole(target) as temporary:
            shutil.copyfile(manifest.folder / file, temporary)
