"""A student's labels: a mix of the teacher's score and the label of each training row.

Distillation (Hinton et al. 2015, arXiv:1503.02531) with one class: the cross-entropy with the mixed label is the mix of
the cross-entropies with the teacher's probability and with the label.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, Problem, first_line
from dlrm_app.typed import setting

KEY = "distillation.scores"


class SoftLabels:
    """The teacher's scores of the train split, in [0, 1], read from the Parquet file ``path`` as they are needed, in
    any number of threads. ``share``: the weight of a score beside that of the label. ``kept_share``: the share of
    negatives that sampling has kept among the training rows.
    """

    def __init__(self, path: Path, share: float, kept_share: float = 1.0) -> None:
        self.path = path
        self._share, self._kept_share = share, kept_share
        self._footer = pq.read_metadata(path)
        groups = range(self._footer.num_row_groups)
        self._first_rows = [0, *accumulate(self._footer.row_group(group).num_rows for group in groups)]

    def mixed(self, first_row: int, labels: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """share · score + (1 - share) · label of the rows from ``first_row`` on. ``labels``: the labels of these rows.

        The teacher knows the odds of a click among all rows; among those that sampling has kept they are 1 / kept times
        as high, so its score p counts as p / (p + kept · (1 - p)).

        Raises DataError if the scores belong to other rows.
        """
        table = self._read(first_row, len(labels))
        if not np.array_equal(numbers_of(table.column("label")), labels):
            rule = (
                f"has other labels than the rows from {first_row:,} on of the train split, because it was "
                "made from another dataset, or of this one before it was made again"
            )
            raise DataError(Problem(f"{KEY}={self.path}", rule, "score it again with dlrm-predict"))
        scores = numbers_of(table.column("score")).astype(np.float32)
        if self._kept_share < 1:
            scores = (scores / (scores + self._kept_share * (1 - scores))).astype(np.float32)
        return (self._share * scores + (1 - self._share) * labels).astype(np.float32)

    def _read(self, first_row: int, num_rows: int) -> pa.Table:
        begin = bisect_right(self._first_rows, first_row) - 1
        end = bisect_left(self._first_rows, first_row + num_rows)
        with pq.ParquetFile(self.path, metadata=self._footer) as file:
            groups = file.read_row_groups(range(begin, end), columns=["score", "label"], use_threads=False)
        return groups.slice(first_row - self._first_rows[begin], num_rows)


def open_soft_labels(path: Path, share: float, manifest: Manifest, runtime: Runtime) -> SoftLabels:
    """Opens dlrm-predict's scores of the train split of ``manifest``; the first rank looks at every score before.

    Raises DataError on every rank, naming the file, if it holds anything else.
    """

    def look() -> None:
        _refuse_other_values(path, manifest, runtime.is_first)

    runtime.together(while_others_wait, look)
    return runtime.together(SoftLabels, path, share, manifest.kept_share("train"))


def _refuse_other_values(path: Path, manifest: Manifest, looks_at_all: bool) -> None:
    if problems := soft_label_problems(path, manifest):
        raise DataError(*problems)
    if not looks_at_all:
        return
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["score", "label"]):
            scores = numbers_of(batch.column("score").fill_null(-1))
            lacks_labels = batch.column("label").null_count > 0
            # written so that NaN is refused too
            if lacks_labels or not ((scores >= 0) & (scores <= 1)).all():
                raise DataError(_refusal(path, manifest, "lacks labels, or scores from 0 to 1"))


def soft_label_problems(path: Path, manifest: Manifest) -> list[Problem]:
    """Reasons, from the file's footer, why the file at ``path`` cannot hold a score for every training row."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        return [_refusal(path, manifest, f"cannot be read ({reason})")]
    rows = manifest.splits["train"].rows
    if not {"score", "label", "shard", "row"} <= set(metadata.schema.names) or metadata.num_rows != rows:
        why = (
            f"does not hold score, label, shard and row of each of {rows:,} rows of the dataset's train split"
        )
        return [_refusal(path, manifest, why)]
    return []


def _refusal(path: Path, manifest: Manifest, why: str) -> Problem:
    command = f"dlrm-predict model=TEACHER {setting('data.path', manifest.folder)} split=train"
    return Problem(f"{KEY}={path}", why, f"make it with {command} {setting('output', path)}")
