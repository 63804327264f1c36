"""Evaluates scores from Parquet files, whatever program wrote them (dlrm-predict, LightGBM, a spreadsheet),
and blends of models.

A file has a column ``score``, the probability of a click, and a row for each row of the split, in the same
order. If it also has ``shard`` and ``row``, or ``file`` and ``line``, as dlrm-predict's files do, its rows
may have any order, and must be those of the split, each once. A column ``label`` is compared with the
split's labels, or used instead of them if no dataset is named.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, Problem, first_line
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.evaluation.row_places import PLACES, RowPlaces, order_rows
from dlrm_app.evaluation.scored_rows import ScoredRows
from dlrm_app.loader.reader import SplitReader

SMALLEST = 1e-12
"""Probabilities are clipped to at least this and at most 1 minus this, because the logit of 0 is infinite."""


@dataclass(frozen=True)
class GivenScores:
    """``logits`` [R] float32 of all rows of a split, in its order, and the same file's labels [R], if it has any."""

    path: str
    logits: torch.Tensor
    labels: torch.Tensor | None
    places: RowPlaces | None = None


def measure_scores(
    config: EvaluateConfig, before: Sequence[torch.Tensor], manifest: Manifest | None, runtime: Runtime
) -> list[tuple[str, ClickMetrics]]:
    """(name, metrics over this rank's rows) of each file in ``config.scores``, and then of the blend, if one
    is asked for.

    ``before``: logits [n] of the models that come before the files in the blend. Labels are those of ``manifest``,
    or of the first file that has any. Raises DataError, on every rank, for files of other rows.
    """
    files, rows, groups = runtime.together(lambda: _read_rows(config, manifest))
    # this rank's share, as in an evaluation
    share = slice(*(part * len(rows) // runtime.world_size for part in (runtime.rank, runtime.rank + 1)))
    own = rows[share]
    labels, row_weights = own.labels.to(runtime.device), own.weights.to(runtime.device)
    found = [(each.path, each.logits[share].to(runtime.device)) for each in files]
    if weights := config.blend:
        models = [*before, *(logits for _, logits in found)]
        total = sum(w * each.double() for w, each in zip(weights, models, strict=True)) / sum(weights)
        assert isinstance(total, torch.Tensor)
        found.append(("blend " + " + ".join(f"{weight:g}" for weight in weights), total.float()))
    measured = []
    for name, logits in found:
        metrics = ClickMetrics(config.split, config.group_by, ranking=config.ranking).to(runtime.device)
        its_groups = None if groups is None else groups[share].to(runtime.device)
        metrics.update(ScoredRows(logits, labels, row_weights, own.is_weighted), its_groups)
        measured.append((name, metrics))
    return measured


def _read_rows(
    config: EvaluateConfig, manifest: Manifest | None
) -> tuple[list[GivenScores], ScoredRows, torch.Tensor | None]:
    """(files, the labels and weights of all R rows, without scores, groups [R] with group_by).

    Raises DataError for files of other rows.
    """
    files = [read_scores(path, manifest, config.split) for path in config.scores]
    groups = None
    if manifest is None:
        given_labels = next((each.labels for each in files if each.labels is not None), None)
        if given_labels is None:
            raise DataError(
                Problem(f"scores={files[0].path}", "has no column label", "give data.path=DATASET")
            )
        rows = ScoredRows.unweighted(torch.zeros(()).expand(len(given_labels)), given_labels)
    else:
        kept = [column for column in manifest.kept if column.name == config.group_by]
        encoded = [config.group_by] if config.group_by and not kept else []
        reader = SplitReader(manifest, config.split, encoded, all_negatives=True)
        # copies, because views would keep all columns
        decoded = map(reader.decode, range(len(reader.group_rows)))
        parts = [
            (each.labels > 0.5, np.array(each.supervision[:, -1]), *map(np.array, each.features))
            for each in decoded
        ]
        labels, weights, *ids = (torch.from_numpy(np.concatenate(each)) for each in zip(*parts, strict=True))
        rows = ScoredRows.unweighted(torch.zeros(()).expand(len(labels)), labels)
        rows = replace(rows, weights=weights, is_weighted=True) if reader.is_weighted else rows
        groups = ids[0] if ids else None
        for column in kept:
            groups = torch.from_numpy(reader.read_kept(column, 0, len(labels)).view(np.int64))
    if manifest is None:
        _refuse_unlike(files)
    _refuse_other_rows(files, rows.labels)
    return files, rows, groups


def _refuse_other_rows(files: Sequence[GivenScores], labels: torch.Tensor) -> None:
    """Raises DataError unless all ``files`` are of as many rows as ``labels`` [R], and their labels are these."""
    for each in files:
        if len(each.logits) != len(labels):
            rule = f"has {len(each.logits):,} rows, the others {len(labels):,}"
            cure = "give a score for each row of the split, and no others"
            raise DataError(Problem(f"scores={each.path}", rule, cure))
        if each.labels is not None and not torch.equal(each.labels, labels):
            rule = "has other labels than the rows that it is compared on"
            cure = (
                "write the scores of the split's rows in their order, or with the columns shard and row, "
                "or file and line, of dlrm-predict"
            )
            raise DataError(Problem(f"scores={each.path}", rule, cure))


def _refuse_unlike(files: Sequence[GivenScores]) -> None:
    """Raises DataError unless all ``files`` that say where their rows come from are of the same rows."""
    placed = [(each.path, each.places) for each in files if each.places is not None]
    for (first, then), (path, places) in pairwise(placed):
        given, expected = (" and ".join(each.columns) for each in (places, then))
        if given != expected:
            rule = f"has {given}, {first} {expected}, which only a dataset can compare"
            raise DataError(Problem(f"scores={path}", rule, "add data.path=DATASET"))
        if not places.are_those_of(then):
            cure = f"their columns {given} differ; give scores of the same rows"
            raise DataError(Problem(f"scores={path}", f"has scores of other rows than {first}", cure))


def read_scores(path: str, manifest: Manifest | None, split: str) -> GivenScores:
    """Reads the scores in the file at ``path``, in the order of ``split``.

    Raises DataError, naming the file, if it is invalid.
    """
    try:
        names = set(pq.read_schema(path).names)
        place, places = next((pair for pair in PLACES if set(pair) <= names), ()), None
        if not place and (half := [pair for pair in PLACES if {*pair} & names]):
            (only,), (other,) = {*half[0]} & names, {*half[0]} - names
            raise ValueError(
                f"it has {only} without {other}: add that, or leave {only} out if rows are in the split's order"
            )
        table = pq.read_table(path, columns=[*({"score", "label"} & names), *place], partitioning=None)
        if place:
            order, places = order_rows(path, table, place, manifest, split)
            table = table.take(pa.array(order))
        kind, types = table.column("score").type, pa.types
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind)):
            raise ValueError(f"column score is {kind}, not numbers")  # Arrow would cast texts and booleans
        scores = numbers_of(table.column("score").cast(pa.float64()))
        labels = None
        if "label" in names:
            values = numbers_of(table.column("label").cast(pa.float64()))
            if len(others := values[(values != 0) & (values != 1)]):
                raise ValueError(f"column label has {others[0]:g}, not 0 or 1 alone")
            labels = torch.from_numpy(values == 1)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        cure = (
            "it must be Parquet with a column score of numbers and, if you like, label, none of them missing"
        )
        raise DataError(Problem(f"scores={path}", f"cannot be used ({reason})", cure)) from error
    if not ((scores >= 0) & (scores <= 1)).all():  # refuses NaN too
        rule = "must hold probabilities, from 0 to 1, in the column score"
        raise DataError(Problem(f"scores={path}", rule))
    p = np.clip(scores, SMALLEST, 1 - SMALLEST)
    return GivenScores(path, torch.from_numpy(np.log(p / (1 - p)).astype(np.float32)), labels, places)
