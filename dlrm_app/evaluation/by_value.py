"""Metrics by the values of a column: of its most frequent values, by their raw names, and of all others together.

Values of a vocabulary and buckets have names. Of a hashed column the values are those that ``keep=`` has kept: whole
numbers and hex digits by themselves, texts by their hash; without these they are the ids of the hash.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from dlrm_app.dataset.encoding_files import read_vocabulary
from dlrm_app.dataset.manifest import TIME, Manifest, SparseColumn
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.intervals import auc_interval
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.evaluation.result import ValueResult
from dlrm_app.evaluation.scored_rows import ScoredRows
from dlrm_app.loader.reader import SplitReader

MOST_VALUES = 20
OTHERS, MISSING, RARE = "(others)", "(missing)", "(rare)"


@dataclass(frozen=True, eq=False)
class ValueGroups:
    """The rows of this rank by the values of ``column``: row r has value ``names[places[r]]``, [R] int64."""

    column: str
    names: Sequence[str]
    places: NDArray[np.int64]


def group_by_value(manifest: Manifest, split: str, name: str, runtime: Runtime) -> ValueGroups:
    """Groups this rank's rows of ``split`` by the values of a column. Every rank must call it. Raises DataError."""
    values, name_of = runtime.together(lambda: _read(manifest, split, name, runtime))
    distinct, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    totals = Counter[int]()
    for part in all_gather_objects(Counter(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))):
        totals.update(part)
    ordered = sorted(totals, key=lambda value: (-totals[value], value))[:MOST_VALUES]
    at = {value: place for place, value in enumerate(ordered)}
    of_distinct = np.array([at.get(value, len(ordered)) for value in distinct.tolist()], np.int64)
    names = [name_of(value) for value in ordered] + [OTHERS] * (len(totals) > len(ordered))
    return ValueGroups(name, names, of_distinct[places.reshape(-1)])


def measure_by_value(groups: ValueGroups, rows: ScoredRows, confidence: float) -> list[ValueResult]:
    """The metrics of each group of this rank's ``rows``, over all ranks, the largest first."""
    places, found = torch.from_numpy(groups.places).to(rows.logits.device), []
    for place, name in enumerate(groups.names):
        some = rows[places == place]
        metrics = ClickMetrics(groups.column, warns=False)
        metrics.update(some)
        values = metrics.compute()
        interval = auc_interval(some, confidence)
        interval = replace(interval, value=values["auc"])  # a class of one row has an AUC, but no interval
        counts = int(values["num_samples"]), int(values["positives"])
        numbers = (values[key] for key in ("logloss", "ne", "calibration"))
        found.append(ValueResult(groups.column, name, *counts, interval, *numbers))
    return found


def _read(
    manifest: Manifest, split: str, name: str, runtime: Runtime
) -> tuple[NDArray[np.int64], Callable[[int], str]]:
    """Returns (the values of this rank's rows of a column as numbers, their names)."""
    reader = SplitReader(manifest, split, [])
    rows = sum(reader.group_rows)
    first, end = (part * rows // runtime.world_size for part in (runtime.rank, runtime.rank + 1))
    column = next(
        (column for column in manifest.sparse if column.name == name and not column.multi_hot), None
    )
    kept = next((column for column in manifest.kept if column.name == name), None)
    if column is not None and (kept is None or column.encoding["kind"] in ("vocab", "bucket")):
        return reader.read_ids(column, first, end).astype(np.int64), _names_of_ids(manifest, column)
    assert kept is not None, "checked before"
    keys = reader.read_kept(kept, first, end)
    missing, kind = kept.missing, kept.kind

    def name_of(value: int) -> str:
        key = value & ((1 << 64) - 1)
        if key == missing:
            return MISSING
        if kind == TIME:
            return str(np.datetime64(value, "us"))
        return str(value) if kind == "integer" else f"{'#' * (kind == 'string')}{key:08x}"

    return keys.view(np.int64), name_of


def _names_of_ids(manifest: Manifest, column: SparseColumn) -> Callable[[int], str]:
    rule = column.encoding
    special = {rule.get("missing_id", 0): MISSING} | ({rule["rare_id"]: RARE} if "rare_id" in rule else {})
    if rule["kind"] == "vocab":
        table = read_vocabulary(manifest.folder, column)
        ids, values = table.column("id").to_pylist(), table.column("value")
        rows = dict(zip(ids, range(len(ids)), strict=True))
        form = "08x" if rule.get("raw") == "hex" else ""
        return lambda at: special.get(at) or format(values[rows[at]].as_py(), form)
    if rule["kind"] == "bucket":
        bounds = [f"{bound:g}" for bound in rule["boundaries"]]
        between = [f"{low} to {high}" for low, high in pairwise(bounds)]
        names = [MISSING, f"below {bounds[0]}", *between, f"from {bounds[-1]}"]
        return names.__getitem__
    return lambda at: special.get(at) or f"id {at}"
