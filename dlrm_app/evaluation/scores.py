"""Evaluates scores from Parquet files, whatever program wrote them (dlrm-predict, LightGBM, a spreadsheet), and blends of models.

A file has a column ``score``, the probability of a click, and a row for each row of the split, in the same order. If it also has
``shard`` and ``row``, or ``file`` and ``line``, as dlrm-predict's files do, its rows may have any order. A column ``label`` is
compared with the split's labels, or used instead of them if no dataset is named.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.reader import SplitReader

PLACES = (("shard", "row"), ("file", "line"))
"""Columns that identify the row of the split that a score belongs to."""
SMALLEST = 1e-12
"""Probabilities are clipped to at least this and at most 1 minus this, because the logit of 0 is infinite."""


@dataclass(frozen=True)
class Scores:
    """``logits`` [R] float32 of all rows of a split, in its order, and the labels [R] from the same file, if it has any."""

    path: str
    logits: torch.Tensor
    labels: torch.Tensor | None


def measure_scores(
    config: EvaluateConfig, before: Sequence[torch.Tensor], manifest: Manifest | None, runtime: Runtime
) -> list[tuple[str, ClickMetrics]]:
    """(name, metrics over this rank's rows) of each file in ``config.scores``, and then of the blend, if one is asked for.

    ``before``: logits [n] of the models that come before the files in the blend. Labels are those of ``manifest``, or of the
    first file that has any. Raises DataError, on every rank, for files of other rows.
    """
    files, labels, groups = runtime.together(lambda: _read_rows(config, manifest))
    # this rank's share, as in an evaluation
    share = slice(*(part * len(labels) // runtime.world_size for part in (runtime.rank, runtime.rank + 1)))
    found = [(each.path, each.logits[share].to(runtime.device)) for each in files]
    if weights := config.blend:
        models = [*before, *(logits for _, logits in found)]
        total = sum(w * each.double() for w, each in zip(weights, models, strict=True)) / sum(weights)
        assert isinstance(total, torch.Tensor)
        found.append(("blend " + " + ".join(f"{weight:g}" for weight in weights), total.float()))
    measured = []
    for name, logits in found:
        metrics = ClickMetrics(config.split, config.group_by).to(runtime.device)
        its_groups = None if groups is None else groups[share].to(runtime.device)
        metrics.update(logits, labels[share].to(runtime.device), its_groups)
        measured.append((name, metrics))
    return measured


def _read_rows(
    config: EvaluateConfig, manifest: Manifest | None
) -> tuple[list[Scores], torch.Tensor, torch.Tensor | None]:
    """(files, labels [R] of all rows, groups [R] with group_by). Raises DataError for files of other rows."""
    files = [read_scores(path, manifest, config.split) for path in config.scores]
    groups = None
    if manifest is None:
        known = next((each.labels for each in files if each.labels is not None), None)
        if known is None:
            raise DataError(f"scores={files[0].path} has no column label: give data.path=DATASET")
        labels = known
    else:
        kept = [column for column in manifest.kept if column.name == config.group_by]
        encoded = [config.group_by] if config.group_by and not kept else []
        reader = SplitReader(manifest, config.split, encoded)
        # copies, because views would keep all columns
        decoded = map(reader.decode, range(len(reader.group_rows)))
        rows = [(each.labels > 0.5, *map(np.array, each.features)) for each in decoded]
        labels, *ids = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*rows, strict=True))
        groups = ids[0] if ids else None
        for column in kept:
            groups = torch.from_numpy(reader.read_kept(column, 0, len(labels)).view(np.int64))
    for each in files:
        if len(each.logits) != len(labels):
            raise DataError(
                f"scores={each.path} has {len(each.logits):,} rows, the others {len(labels):,}: give a score for each row of "
                "the split, and no others"
            )
        if each.labels is not None and not torch.equal(each.labels, labels):
            raise DataError(
                f"scores={each.path} has other labels than the rows that it is compared on: write the scores of the split's "
                "rows in their order, or with the columns shard and row, or file and line, of dlrm-predict"
            )
    return files, labels, groups


def read_scores(path: str, manifest: Manifest | None, split: str) -> Scores:
    """Reads the scores in the file at ``path``, in the order of ``split``. Raises DataError, naming the file, if it is invalid."""
    try:
        names = set(pq.read_schema(path).names)
        place = next((pair for pair in PLACES if set(pair) <= names), ())
        table = pq.read_table(path, columns=[*({"score", "label"} & names), *place], partitioning=None)
        if place:
            table = table.take(pa.array(_order(table, place, manifest, split)))
        kind, types = table.column("score").type, pa.types
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind)):
            raise ValueError(f"column score is {kind}, not numbers")  # Arrow would cast texts and booleans
        scores = numbers_of(table.column("score").cast(pa.float64()))
        labels = None
        if "label" in names:
            labels = torch.from_numpy(numbers_of(table.column("label").cast(pa.float32())) == 1)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(
            f"scores={path} cannot be used ({reason}): it must be Parquet with a column score of numbers and, if you like, "
            "label, none of them missing"
        ) from error
    if not ((scores >= 0) & (scores <= 1)).all():  # refuses NaN too
        raise DataError(f"scores={path} must hold probabilities, from 0 to 1, in the column score")
    p = np.clip(scores, SMALLEST, 1 - SMALLEST)
    return Scores(path, torch.from_numpy(np.log(p / (1 - p)).astype(np.float32)), labels)


def _order(table: pa.Table, place: Sequence[str], manifest: Manifest | None, split: str) -> NDArray[np.int64]:
    """The order that sorts the table's rows as in the split, or by the names of their files."""
    encoded = table.column(place[0]).cast(pa.string()).combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    known = sorted(names)
    if manifest is not None:
        of_split = manifest.splits[split].shards if place[0] == "shard" else manifest.sources
        paths = [each.path for each in of_split]
        known = paths if set(names) <= set(paths) else known
    number = np.array([known.index(name) for name in names], np.int64)
    order: NDArray[np.int64] = np.lexsort(
        (numbers_of(table.column(place[1])), number[numbers_of(encoded.indices)])
    )
    return order
