"""Anybody's scores of a split's rows, from Parquet files: dlrm-predict's, LightGBM's, a spreadsheet's.

A file has a column ``score``, the probability of a click, and a row for each row of the split, in their order. If it also has
``shard`` and ``row``, or ``file`` and ``line``, as dlrm-predict writes, its rows may have any order. A column ``label`` is
compared with the split's labels, or stands for them where no dataset is named.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError

PLACES = (("shard", "row"), ("file", "line"))
"""Columns that say which row of the split a score is for."""
SMALLEST = 1e-12
"""Probabilities nearer to 0 or 1 than that count as so near: the logit of 0 has no number."""


@dataclass(frozen=True)
class Labels:
    """``labels`` [n] bool of this rank's rows, ``groups`` [n] with group_by, and ``rows``: which of all they are."""

    labels: torch.Tensor
    groups: torch.Tensor | None
    rows: range


@dataclass(frozen=True)
class Scores:
    """``scores`` [R] of all rows of a split in its order, and the labels [R] written beside them, if there are any."""

    path: Path
    scores: NDArray[np.float64]
    labels: NDArray[np.bool_] | None

    def logits(self, given: Labels) -> torch.Tensor:
        """[n] float32 of the rows of ``given``. Raises DataError where the scores are of other rows."""
        part = slice(given.rows.start, given.rows.stop)
        if self.labels is not None and not np.array_equal(self.labels[part], given.labels.cpu().numpy()):
            raise DataError(
                f"scores={self.path} has other labels than the rows that it is compared on: write the scores of the split's rows "
                "in their order, or with the columns shard and row, or file and line, of dlrm-predict"
            )
        p = np.clip(self.scores[part], SMALLEST, 1 - SMALLEST)
        return torch.from_numpy(np.log(p / (1 - p)).astype(np.float32))


def read_scores(path: Path, manifest: Manifest | None, split: str) -> Scores:
    """The scores in the file at ``path`` of ``split``. Raises DataError, naming the file, for anything else."""
    table = _read(path)
    if problem := _problem(table, None if manifest is None else manifest.splits[split].rows):
        raise DataError(f"scores={path} {problem}")
    if (order := _order(table, manifest, split)) is not None:
        table = table.take(pa.array(order))
    scores = numbers_of(table.column("score").cast(pa.float64()))
    if not ((scores >= 0) & (scores <= 1)).all():  # NaN is neither
        raise DataError(f"scores={path} must hold probabilities, from 0 to 1, in the column score")
    labels = None
    if "label" in table.column_names:
        labels = numbers_of(table.column("label").cast(pa.float32())) == 1
    return Scores(path, scores, labels)


def _read(path: Path) -> pa.Table:
    try:
        names = set(pq.read_schema(path).names)
        wanted = ["score", "label", *(name for pair in PLACES if set(pair) <= names for name in pair)]
        return pq.read_table(path, columns=[name for name in wanted if name in names], partitioning=None)
    except (pa.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"scores={path} cannot be read as Parquet: {reason}") from error


def _problem(table: pa.Table, rows: int | None) -> str | None:
    """What a file of scores lacks."""
    kinds = {field.name: field.type for field in table.schema}
    if "score" not in kinds or not pa.types.is_floating(kinds["score"]):
        return "lacks a column score of floating-point numbers: name the probabilities so"
    if "label" in kinds and not (pa.types.is_primitive(kinds["label"])):
        return f"has labels of type {kinds['label']}: write 0 and 1, or leave the column label out"
    if empty := [name for name in kinds if table.column(name).null_count]:
        return f"has missing values in the column {empty[0]}: give every row a score"
    if rows is not None and len(table) != rows:
        return f"has {len(table):,} rows, the split has {rows:,}: give a score for each row of the split, and no others"
    return None


def _order(table: pa.Table, manifest: Manifest | None, split: str) -> NDArray[np.int64] | None:
    """The numbers of the table's rows in the order of the split; None where it does not say which row each is."""
    place = next((pair for pair in PLACES if set(pair) <= set(table.column_names)), None)
    if place is None:
        return None
    encoded = table.column(place[0]).cast(pa.string()).combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    known = sorted(names)
    if manifest is not None:
        shards, sources = manifest.splits[split].shards, manifest.sources
        of_split = [each.path for each in (shards if place[0] == "shard" else sources)]
        known = of_split if set(names) <= set(of_split) else known
    number = np.array([known.index(name) for name in names], np.int64)
    rows = numbers_of(table.column(place[1]))
    order: NDArray[np.int64] = np.lexsort((rows, number[numbers_of(encoded.indices)]))
    return order


def own_labels(files: Sequence[Scores], runtime: Runtime) -> Labels:
    """This rank's share of the first labels written beside the scores. Raises DataError where none are, or not as many."""
    labels = next((each.labels for each in files if each.labels is not None), None)
    if labels is None:
        raise DataError(
            f"scores={files[0].path} has no column label, and no dataset is named: give data.path=DATASET"
        )
    if other := next((each for each in files if len(each.scores) != len(labels)), None):
        raise DataError(
            f"scores={other.path} has {len(other.scores):,} rows, the file with labels {len(labels):,}: give scores of the same rows"
        )
    rank, world_size, total = runtime.rank, runtime.world_size, len(labels)
    rows = range(rank * total // world_size, (rank + 1) * total // world_size)
    return Labels(torch.from_numpy(labels[rows.start : rows.stop]).to(runtime.device), None, rows)


def blend(logits: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """The mean of models' logits [n] each, by ``weights``."""
    total: Any = sum(weight * each.double() for weight, each in zip(weights, logits, strict=True))
    mean: torch.Tensor = (total / sum(weights)).float()
    return mean
