"""Target encoding: what a sparse column's value says of a click, as a dense column beside it (Micci-Barreca 2001).

The column holds log((c + a·p) / (n - c + a·(1 - p))) - log(p / (1 - p)): with c clicks in the n training rows of the
value's id, p the share of clicks in all of them, and a the strength of that prior. It is 0 for an id that no row has.

A training row must not be told its own click: training rows are dealt to NUM_FOLDS folds, and a row is encoded by the
others' rows alone (n, c and p are theirs). All other rows, those scored later too, are encoded by all training rows.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.manifest import DenseColumn

KIND = "target"
NUM_FOLDS = 10
STRONGEST = 1e5
"""The strength where values differ by no more than chance: it leaves next to nothing of a column."""


def target_file(name: str) -> str:
    """What is known of a column's ids, relative to the dataset folder."""
    return f"target/{name}.parquet"


def prior_strength(rows: NDArray[np.int64], clicks: NDArray[np.int64], rate: float) -> float:
    """How many rows the prior counts for, in [1, STRONGEST], by the moments of the beta-binomial (Kleinman 1973).

    rows, clicks [ids]; rate: of clicks in all rows. The more the ids' rates differ, beyond what so few rows would by
    chance, the weaker. It needs no setting, so that it fits any column and any rate of clicks.
    """
    rows, clicks = rows[rows > 0], clicks[rows > 0]
    spread = float((rows * (clicks / rows - rate) ** 2).sum()) / (rate * (1 - rate))
    correlation = (spread - len(rows)) / max(int((rows - 1).sum()), 1)
    return float(np.clip(1 / max(correlation, 1e-9) - 1, 1.0, STRONGEST))


def log_odds(
    rows: NDArray[np.int64], clicks: NDArray[np.int64], strength: float, rate: float
) -> NDArray[np.float32]:
    """The column's value of every id; rows, clicks [ids]."""
    prior = strength * rate, strength * (1 - rate)
    return (np.log((clicks + prior[0]) / (rows - clicks + prior[1])) - np.log(prior[0] / prior[1])).astype(
        np.float32
    )


def share_of(clicks: int, rows: int) -> float:
    """The share of clicks, kept off 0 and 1, which have no odds."""
    return (clicks + 0.5) / (rows + 1)


def write_values(
    path: Path, rows: NDArray[np.int64], clicks: NDArray[np.int64], values: NDArray[np.float32]
) -> None:
    """Writes the file of a column; the line is the id."""
    columns = {"rows": array_of(rows), "clicks": array_of(clicks), "log_odds": array_of(values)}
    pq.write_table(pa.table(columns), path, compression="zstd")


class TargetEncoder:
    """The target columns among ``dense``, ready to apply. ``folder`` is the dataset's, with their files.

    folded: where the values by fold lie, ``<column>.npy`` [ids, NUM_FOLDS]; given for training rows alone.
    """

    def __init__(self, dense: Sequence[DenseColumn], folder: Path, folded: Path | None = None) -> None:
        columns = [column for column in dense if is_target(column)]
        self.sources = [column.transform["column"] for column in columns]
        """The sparse column behind each."""
        self._folded = folded is not None
        self._values = [
            _load_values(folder / column.transform["file"])
            if folded is None
            else np.load(folded_file(folded, column.transform["column"]), mmap_mode="r")
            for column in columns
        ]

    def apply(
        self, number: int, ids: NDArray[np.int32], folds: NDArray[np.uint8] | None
    ) -> NDArray[np.float32]:
        """Column ``number`` [R] of rows with ``ids`` [R]; ``folds`` [R] of training rows."""
        values = self._values[number]
        if not self._folded:
            return values[ids]
        return np.asarray(values[ids, folds])


def is_target(column: DenseColumn) -> bool:
    return bool(column.transform["kind"] == KIND)


def folded_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def _load_values(path: Path) -> Any:
    """``log_odds`` of every id, read once per process as long as it is the same file."""
    status = path.stat()
    return _load(path, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=4096)
def _load(path: Path, modified_ns: int, inode: int) -> NDArray[np.float32]:
    return numbers_of(pq.read_table(path, columns=["log_odds"]).column("log_odds")).astype(np.float32)
