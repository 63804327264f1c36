"""Measures a day's rows: distributions of columns, missing values, rows known from earlier days, rows by hour.

    OUTPUT/days/2026-11-02/profile.json   bins of each column, with the rows in them, of a sample of the day's rows
                           contents.npy   a sample of the rows by the hashes of their contents

Both stay when the day's dataset is deleted, because later days are compared with them.
"""

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags, numbers_of, read_ids, read_weights
from dlrm_app.dataset.columns import is_opinion
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.encoding.row_samples import SAMPLE_FILE, read_row_sample
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import write_json
from dlrm_app.logs.sources.lake import partition_of
from dlrm_app.records import Number, read_record
from dlrm_app.tools.daily.record import DayWeights

PROFILE = "profile.json"
_SAMPLED_ROWS = 1 << 18
"""The approximate number of sampled rows, in evenly spread row groups."""
_BINS = 20
"""The number of bins: quantiles of a dense column, or the most frequent ids of a sparse one."""
_HOURS = ("hour", "hr", "hh")
"""Keys of folders that stand for the hour."""


@dataclass(frozen=True)
class Bins:
    """A column's bins and the number of values in each.

    ``bounds``: the upper ends of a dense column's bins, or ids; the last bin has all other values.
    """

    bounds: list[Number]
    counts: list[int]


Profile = dict[str, Bins]
Values = NDArray[np.float32] | NDArray[np.int32]
"""Numbers of a dense column, or ids."""


def profile_of(dataset: Manifest) -> Profile:
    """The bins of every column, on a sample of the training rows.

    Skips estimates of the click, which come from other rows' clicks.
    """
    return {name: binned(values) for name, values in columns_of(dataset)}


def binned(values: Values, bounds: Sequence[float] | None = None) -> Bins:
    """The bins of a column's numbers or ids; ``bounds``: those of other rows, instead of its own."""
    if np.issubdtype(values.dtype, np.floating):
        ends = _quantiles(values) if bounds is None else np.array(bounds, np.float32)
        places = np.searchsorted(ends, values, side="left")
        return Bins(ends.tolist(), np.bincount(places, minlength=len(ends) + 1).tolist())
    ids = _top_ids(values) if bounds is None else np.array(bounds, np.int64)
    return Bins(ids.tolist(), _count_ids(values, ids))


def columns_of(dataset: Manifest) -> Iterator[tuple[str, Values]]:
    """(name, numbers or ids) of every column, weights too, on a sample of the training rows.

    Skips estimates of the click.
    """
    tables = list(_sampled(dataset))
    for dense in dataset.dense:
        if not is_opinion(dense):
            yield dense.name, np.concatenate([numbers_of(table.column(dense.name)) for table in tables])
    if dataset.weight is not None:
        yield dataset.weight, np.concatenate([read_weights(table, dataset.weight) for table in tables])
    for sparse in dataset.sparse:
        yield sparse.name, np.concatenate([_flat(read_ids(table, sparse)) for table in tables])


def _sampled(dataset: Manifest) -> Iterator[pa.Table]:
    split = dataset.splits["train"]
    groups = [(shard, index) for shard in split.shards for index in range(len(shard.row_groups))]
    names = [*(column.name for column in dataset.dense), *(column.name for column in dataset.sparse)]
    names += [dataset.weight] if dataset.weight is not None else []
    reader = ShardReader(dataset.folder, names)
    for shard, index in groups[:: max(split.rows // _SAMPLED_ROWS, 1)]:
        yield reader.read(shard, index)


def _flat(ids: NDArray[np.int32] | Bags) -> NDArray[np.int32]:
    return ids.values if isinstance(ids, Bags) else ids


def _top_ids(ids: Values) -> NDArray[np.int64]:
    distinct, counts = np.unique(ids, return_counts=True)
    return np.sort(distinct[np.argsort(-counts, kind="stable")[:_BINS]]).astype(np.int64)


def _count_ids(values: Values, ids: NDArray[np.int64]) -> list[int]:
    """The number of values of each of ``ids``, which are sorted, and of all others."""
    if not len(ids):
        return [len(values)]
    places = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
    is_there = ids[places] == values
    counts = np.bincount(places[is_there], minlength=len(ids)).tolist()
    return [*counts, int((~is_there).sum())]


def _quantiles(values: Values) -> NDArray[np.float32]:
    if not len(values):
        return np.empty(0, np.float32)
    places = np.arange(1, _BINS) * (len(values) - 1) // _BINS
    return np.unique(np.sort(values)[places])


def shift_of(before: Sequence[int], now: Sequence[int]) -> float:
    """The population stability index of two distributions over the same bins, less the index that chance gives.

    The index is the sum over the bins of (q - p) · log(q / p), where p and q are the shares of the values; equal
    distributions have 0. By chance, it is chi-squared with one degree of freedom less than bins, times 1/n + 1/m. The
    mean of that and four standard deviations are subtracted.
    """
    p, q = np.array(before) + 0.5, np.array(now) + 0.5
    chance = float(1 / p.sum() + 1 / q.sum())
    p, q = p / p.sum(), q / q.sum()
    freedom = max(len(p) - 1, 0)
    found = float(((q - p) * np.log(q / p)).sum())
    return max(found - (freedom + 4 * math.sqrt(2 * freedom)) * chance, 0.0)


def write_measures(dataset: Manifest, folder: Path) -> None:
    """Keeps a day's profile and the sample of its rows in its ``folder``."""
    if dataset.contents is not None:
        shutil.copyfile(dataset.folder / dataset.contents["file"], folder / SAMPLE_FILE)
    write_json(folder / PROFILE, {name: asdict(bins) for name, bins in profile_of(dataset).items()})


def read_profile(folder: Path) -> Profile:
    """The profile of the day in ``folder``. Raises DataError if it is damaged."""
    path = folder / PROFILE
    try:
        return read_record(path, Profile, f"delete {folder} and run the same command")
    except OSError as error:
        raise DataError(
            Problem(str(path), f"cannot be read ({error})", f"delete {folder} and run the same command")
        ) from error


def shifts(dataset: Manifest, earlier: Sequence[Path]) -> dict[str, float]:
    """Column → the population stability index of the day's rows against the most similar of the ``earlier`` days.

    So a day that is like any of them is not shifted: the day after an odd one, or a Sunday like last Sunday.
    """
    profiles = [read_profile(day) for day in earlier]
    found = {}
    for name, values in columns_of(dataset):
        before = [profile[name] for profile in profiles if name in profile]
        distances = [shift_of(bins.counts, binned(values, bins.bounds).counts) for bins in before]
        if distances:
            found[name] = min(distances)
    return found


def missing_shares(dataset: Manifest) -> dict[str, float]:
    """Column → the share of its values that are missing; also other label → the share of the training rows that lack
    it.

    A label that is ``given`` another one ("order|click") is counted only where that one is 1; elsewhere it has no
    meaning.
    """
    shares = {column.name: column.missing_rate for column in dataset.dense}
    shares |= {name: 1 - known / max(asked, 1) for name, (known, asked) in _known_labels(dataset).items()}
    shares |= {column.name: column.missing_rate for column in dataset.sparse}
    return shares | {column.name: column.missing_rate for column in dataset.vectors}


def asked_rows(dataset: Manifest) -> dict[str, int]:
    """Other label → the number of the training rows that should have it. Names are those of ``missing_shares``."""
    return {name: asked for name, (_, asked) in _known_labels(dataset).items()}


def _known_labels(dataset: Manifest) -> dict[str, tuple[int, int]]:
    """Other label → (the training rows that have it, those that should)."""
    unweighted = replace(dataset.without_weights(), negatives_kept={})
    counted = dataset.splits["train"].labels
    found = {}
    for label in dataset.other_labels:
        if label.name in counted:
            name = label.name if label.given is None else f"{label.name}|{label.given}"
            _, known, asked = unweighted.where_given("train", label)
            found[name] = int(known), int(asked)
    return found


def weights_of(dataset: Manifest) -> dict[str, DayWeights]:
    """The weights of all "rows" of the day, and of its "positives"; empty if rows have none."""
    if dataset.weight is None or dataset.label is None:
        return {}
    reader = ShardReader(dataset.folder, [dataset.label, dataset.weight])
    groups = ((shard, index) for shard in dataset.shards for index in range(len(shard.row_groups)))
    tables = (reader.read(shard, index) for shard, index in groups)
    return weigh(
        (read_weights(table, dataset.weight), numbers_of(table.column(dataset.label)) == 1)
        for table in tables
    )


def weigh(groups: Iterable[tuple[NDArray[np.float32], NDArray[np.bool_]]]) -> dict[str, DayWeights]:
    """The moments of weights, of all "rows" and of the "positives"; ``groups``: (weights, is positive) of rows."""
    sums = {"rows": np.zeros(5), "positives": np.zeros(5)}
    for weights, is_positive in groups:
        for name, some in (("rows", weights), ("positives", weights[is_positive])):
            sums[name] += [(some.astype(np.float64) ** power).sum() for power in range(5)]
    return {name: _weights(*each.tolist()) for name, each in sums.items() if each[0]}


def _weights(rows: float, first: float, second: float, third: float, fourth: float) -> DayWeights:
    """``first`` …: the sums of the weights, of their squares, and so on."""
    if not first:
        return DayWeights(int(rows), 0.0, 0.0, 0.0)
    spread = rows * second / first**2 - 1
    # that of log(first² / second), to the first order; it is large where few rows have most of the weight
    variance = 4 * second / first**2 - 4 * third / (first * second) + fourth / second**2 - 1 / rows
    return DayWeights(int(rows), first / rows, math.sqrt(max(spread, 0.0)), math.sqrt(max(variance, 0.0)))


def known_rows(folder: Path, earlier: Sequence[Path]) -> float | None:
    """The share of rows whose content an earlier row of the day or of the ``earlier`` days has; None if unknown."""
    paths = [day / SAMPLE_FILE for day in earlier if (day / SAMPLE_FILE).is_file()]
    if not (folder / SAMPLE_FILE).is_file():
        return None
    try:
        own, others = read_row_sample(folder / SAMPLE_FILE), [read_row_sample(path) for path in paths]
    except DataError as error:
        cure = "or delete this file: then rows of its day are not recognized"
        raise DataError(*(problem.also(cure) for problem in error.problems)) from error
    rows = own.seen_in(others).rows  # those whose hashes all samples would hold
    contents = replace(own, counts=np.ones_like(own.counts)).seen_in(others)
    return 1 - (contents.rows - contents.known) / max(rows, 1)


def hours_of(dataset: Manifest) -> dict[str, list[int]]:
    """Hour → its rows and its files; empty if files do not lie in folders such as hour=00."""
    hours: dict[str, list[int]] = {}
    for source in dataset.sources:
        keys = partition_of(str(source.path))
        hour = next((keys[key] for key in keys if key.lower() in _HOURS), None)
        if hour is None:
            return {}
        hour = hour.zfill(2)
        rows, files = hours.get(hour, [0, 0])
        hours[hour] = [rows + source.rows, files + 1]
    return dict(sorted(hours.items()))
