"""Importance of features: what a model's AUC and log loss lose where a feature's values are permuted.

Breiman 2001, "Random forests", section 10; defined as scikit-learn's permutation_importance: all other columns stay.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from statistics import NormalDist, fmean, variance

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from dlrm_app.config.scoring import PermutationsConfig
from dlrm_app.dataset.arrow import Bags
from dlrm_app.distributed.collectives import all_gather_objects, sum_in_rank_order
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.intervals import compare_aucs
from dlrm_app.evaluation.result import FeatureImportance, Importance, Interval
from dlrm_app.loader.batch import Batch, BatchMaker
from dlrm_app.loader.batch_order import COLUMN_ORDER, permutation
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.rows import Columns, Ranges, Rows

Scored = tuple[torch.Tensor, torch.Tensor]
"""Logits [n] and labels [n] bool of this rank's rows."""
Feature = NDArray[np.int32] | Bags
Change = tuple[float, float]
"""A difference and its standard error over rows."""


class ShareOfRows:
    """This rank's batches of ``rows``; all ranks have equally many, and the last may be short or empty."""

    def __init__(self, rows: Rows, maker: BatchMaker, batch_size: int, runtime: Runtime) -> None:
        rank, world_size = runtime.rank, runtime.world_size
        self._rows = rows
        self._maker = maker
        self._batch_size = batch_size
        self._share = range(rank * len(rows) // world_size, (rank + 1) * len(rows) // world_size)
        self._num_batches = -(-len(rows) // (world_size * batch_size))

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self._num_batches):
            share = self._share[number * self._batch_size : (number + 1) * self._batch_size]
            piece = np.array([[share.start, share.stop, 0]] if share else np.empty((0, 3)), np.int64)
            rows = [self._rows] if share else []
            yield from self._maker.make(Ranges(rows, piece, self._batch_size, 1))


def measure_importance(
    score: Callable[[Columns, str], Scored],
    sample: Columns,
    names: list[str],
    settings: PermutationsConfig,
    confidence: float,
) -> Importance:
    """Permutes each of the columns ``names``, dense ones first, within ``sample``. The same at any number of ranks."""
    as_it_is = score(sample, "importance")
    features = []
    for number, name in enumerate(names):
        changes = []
        for repeat in range(settings.repeats):
            order = permutation(len(sample.labels), settings.seed, repeat, COLUMN_ORDER, number)
            title = f"importance of {name}, {number + 1} of {len(names)}"
            changes.append(_change(as_it_is, score(permuted(sample, number, order), title)))
        auc, loss = zip(*changes, strict=True)
        features.append(
            FeatureImportance(name, over_repeats(auc, confidence), over_repeats(loss, confidence))
        )
    features.sort(key=lambda each: -each.auc_lost.value)
    return Importance(len(sample.labels), settings.repeats, confidence, features)


def permuted(sample: Columns, number: int, order: NDArray[np.int64]) -> Columns:
    """``sample`` with column ``number``, counted through the dense ones and then the features, in another ``order``."""
    dense, features = list(sample.dense), list(sample.features)
    if number < len(dense):
        dense[number] = dense[number][order]
    else:
        features[number - len(dense)] = take(features[number - len(dense)], order)
    return replace(sample, dense=dense, features=features)


def _change(as_it_is: Scored, permuted_rows: Scored) -> tuple[Change, Change]:
    """(AUC lost, log loss gained), both paired by row."""
    auc = compare_aucs(as_it_is[0], permuted_rows[0], as_it_is[1]).difference
    gains = _losses(*permuted_rows) - _losses(*as_it_is)
    sums = torch.stack([torch.ones_like(gains).sum(), gains.sum(), gains.square().sum()])
    count, total, squares = sum_in_rank_order(sums).tolist()
    mean = total / count
    return (auc.value, auc.standard_error), (mean, math.sqrt(max(0.0, squares / count - mean**2) / count))


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[n] float64, in nats."""
    return F.binary_cross_entropy_with_logits(logits.double(), labels.double(), reduction="none")


def over_repeats(changes: tuple[Change, ...], confidence: float) -> Interval:
    """The mean of ``changes`` and its interval: the rows' share of the error is common to all repeats, the order's is not.

    The variance is the mean of those over rows, and that between repeats over their number.
    """
    values = [value for value, _ in changes]
    between = variance(values) / len(values) if len(values) > 1 else 0.0
    error = math.sqrt(fmean(error**2 for _, error in changes) + between)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    mean = fmean(values)
    return Interval(mean, error, mean - reach, mean + reach)


def sample_rows(reader: SplitReader, max_rows: int, runtime: Runtime) -> Columns:
    """Every k-th row of a split, at most ``max_rows``, the same on every rank: each decodes its share of the row groups."""
    stride = max(1, -(-sum(reader.group_rows) // max_rows))
    firsts = np.cumsum([0, *reader.group_rows])

    def take_share() -> list[tuple[int, Columns]]:
        return [
            (group, _rows_of(reader, group, np.arange(-firsts[group] % stride, rows, stride)))
            for group, rows in enumerate(reader.group_rows)
            if group % runtime.world_size == runtime.rank
        ]

    by_rank = all_gather_objects(runtime.together(take_share))
    parts = [part for _, part in sorted(chain.from_iterable(by_rank), key=itemgetter(0))]
    return Columns(
        [np.concatenate(column) for column in zip(*(part.dense for part in parts), strict=True)],
        [_joined(column) for column in zip(*(part.features for part in parts), strict=True)],
        np.concatenate([part.labels for part in parts]),
    )


def _rows_of(reader: SplitReader, group: int, numbers: NDArray[np.int64]) -> Columns:
    rows = reader.decode(group)
    return Columns(
        list(np.ascontiguousarray(rows.dense[numbers].T)),
        [take(feature, numbers) for feature in rows.features],
        rows.labels[numbers].astype(np.uint8),
    )


def take(feature: Feature, order: NDArray[np.int64]) -> Feature:
    """The rows ``order`` of a feature, in that order."""
    if not isinstance(feature, Bags):
        return feature[order]
    starts, counts = feature.offsets[order].astype(np.int64), np.diff(feature.offsets)[order].astype(np.int64)
    ends = counts.cumsum()
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return Bags(feature.values[np.repeat(starts, counts) + within], offsets)


def _joined(parts: Sequence[Feature]) -> Feature:
    bags = [part for part in parts if isinstance(part, Bags)]
    if not bags:
        return np.concatenate([part for part in parts if not isinstance(part, Bags)])
    counts = np.concatenate([np.diff(part.offsets) for part in bags])
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    return Bags(np.concatenate([part.values for part in bags]), offsets)
