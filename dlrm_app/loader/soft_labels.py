"""A student's labels: a mix of the teacher's score and the label of each training row.

Distillation (Hinton et al. 2015, arXiv:1503.02531) with one class: the cross-entropy with the mixed label is the mix of the
cross-entropies with the teacher's probability and with the label.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError
from dlrm_app.text import setting

KEY = "distillation.scores"


@dataclass(frozen=True)
class SoftLabels:
    """The teacher's ``scores`` [rows] of the train split, in [0, 1], and the ``labels`` [rows] from the same file."""

    path: Path
    scores: NDArray[np.float32]
    labels: NDArray[np.uint8]
    share: float

    def mixed(self, first_row: int, labels: NDArray[Any]) -> NDArray[np.float32]:
        """share · score + (1 - share) · label of the rows from ``first_row`` on. ``labels``: the labels of these rows.

        Raises DataError if the scores belong to other rows.
        """
        rows = slice(first_row, first_row + len(labels))
        if not np.array_equal(self.labels[rows], labels):
            raise DataError(
                f"{KEY}={self.path} has other labels than the rows from {first_row:,} on of the train split: it was made from "
                "another dataset, or of this one before it was made again; score it again with dlrm-predict"
            )
        return (self.share * self.scores[rows] + (1 - self.share) * labels).astype(np.float32)


def read_soft_labels(path: Path, share: float, manifest: Manifest) -> SoftLabels:
    """Reads dlrm-predict's scores of the train split of ``manifest``. Raises DataError, naming the file, if it holds anything else."""
    if problems := soft_label_problems(path, manifest):
        raise DataError("; ".join(problems))
    table = pq.read_table(path, columns=["score", "label"])
    scores = table.column("score").fill_null(-1)
    scores = numbers_of(scores).astype(np.float32)
    if table.column("label").null_count or not ((scores >= 0) & (scores <= 1)).all():  # refuses NaN too
        raise DataError(_refusal(path, manifest, "lacks labels, or scores from 0 to 1"))
    return SoftLabels(path, scores, numbers_of(table.column("label")).astype(np.uint8), share)


def soft_label_problems(path: Path, manifest: Manifest) -> list[str]:
    """Reasons, from the file's footer, why the file at ``path`` cannot hold a score for every training row."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        return [_refusal(path, manifest, f"cannot be read ({reason})")]
    rows = manifest.splits["train"].rows
    if not {"score", "label", "shard", "row"} <= set(metadata.schema.names) or metadata.num_rows != rows:
        why = (
            f"does not hold score, label, shard and row of each of {rows:,} rows of the dataset's train split"
        )
        return [_refusal(path, manifest, why)]
    return []


def _refusal(path: Path, manifest: Manifest, why: str) -> str:
    command = f"dlrm-predict model=TEACHER {setting('data.path', manifest.folder)} split=train"
    return f"{KEY}={path} {why}: make it with {command} {setting('output', path)}"
