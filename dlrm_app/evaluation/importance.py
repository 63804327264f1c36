"""Importance of features: what a model's AUC and log loss lose where a feature's values are permuted.

Breiman 2001, "Random forests", section 10; defined as scikit-learn's permutation_importance: all other columns stay.
"""

import math
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from statistics import NormalDist, fmean, variance

import numpy as np
import pyarrow as pa
import torch
from torch.nn import functional as F

from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.distributed.collectives import all_gather_objects, sum_in_rank_order
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.evaluate import ForwardPasses, score_rows
from dlrm_app.evaluation.intervals import compare_aucs
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.evaluation.result import FeatureImportance, Importance, Interval
from dlrm_app.loader.batch import Batch, BatchMaker
from dlrm_app.loader.batch_order import COLUMN_ORDER, permutation
from dlrm_app.loader.reader import TableReader
from dlrm_app.loader.rows import Ranges, Rows, arrange

Scored = tuple[torch.Tensor, torch.Tensor]
"""Logits [n] and labels [n] bool of this rank's rows."""
Change = tuple[float, float]
"""A difference and its standard error over rows."""


def measure_importance(
    passes: ForwardPasses,
    features: Sequence[str],
    manifest: Manifest,
    config: EvaluateConfig,
    batch_size: int,
    runtime: Runtime,
) -> Importance:
    """Permutes each dense column and each of ``features`` within a sample of the split. The same at any number of ranks."""
    settings, reader = config.permutations, TableReader(manifest, features)
    sample = sample_rows(manifest, config.split, reader, settings.rows, runtime)
    maker = BatchMaker(manifest, features, batch_size, runtime.device)

    def score(table: pa.Table, title: str) -> Scored:
        metrics = ClickMetrics("the sample")
        batches = _share(arrange(reader.read(table, "the sample"), None), maker, batch_size, runtime)

        def add(batch: Batch, logits: torch.Tensor) -> None:
            metrics.update(logits, batch.labels[: batch.num_valid])

        score_rows(passes, batches, runtime, title, add)
        return metrics.rows()

    as_it_is = score(sample, "importance")
    names, found = reader.columns(has_label=False), []
    for number, name in enumerate(names):
        changes = []
        for repeat in range(settings.repeats):
            order = array_of(permutation(len(sample), settings.seed, repeat, COLUMN_ORDER, number))
            column = sample.schema.get_field_index(name)
            permuted = sample.set_column(column, name, sample.column(name).take(order))
            title = f"importance of {name}, {number + 1} of {len(names)}"
            changes.append(_change(as_it_is, score(permuted, title)))
        auc, loss = (over_repeats(each, config.confidence) for each in zip(*changes, strict=True))
        found.append(FeatureImportance(name, auc, loss))
    found.sort(key=lambda each: -each.auc_lost.value)
    return Importance(len(sample), settings.repeats, config.confidence, found)


def _share(rows: Rows, maker: BatchMaker, batch_size: int, runtime: Runtime) -> list[Batch]:
    """This rank's batches of ``rows``; all ranks have equally many, and the last may be short or empty."""
    rank, world_size = runtime.rank, runtime.world_size
    begin, end = (part * len(rows) // world_size for part in (rank, rank + 1))
    num_batches = -(-len(rows) // (world_size * batch_size))
    return maker.make(Ranges([rows], np.array([[begin, end, 0]], np.int64), batch_size, num_batches))


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


def over_repeats(changes: Sequence[Change], confidence: float) -> Interval:
    """The mean of ``changes`` and its interval: the rows' share of the error is common to all repeats, the order's is not.

    The variance is the mean of those over rows, and that between repeats over their number.
    """
    values = [value for value, _ in changes]
    error = math.sqrt(fmean(error**2 for _, error in changes) + variance(values) / len(values))
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    mean = fmean(values)
    return Interval(mean, error, mean - reach, mean + reach)


def sample_rows(
    manifest: Manifest, split: str, reader: TableReader, max_rows: int, runtime: Runtime
) -> pa.Table:
    """Every k-th row of a split, at most ``max_rows``, the same on every rank: each decodes its share of the row groups."""
    shards = ShardReader(manifest.folder, reader.columns(has_label=True))
    groups = [(each, n) for each in manifest.splits[split].shards for n in range(len(each.row_groups))]
    firsts = np.cumsum([0, *(shard.row_groups[n] for shard, n in groups)])
    stride = max(1, -(-int(firsts[-1]) // max_rows))

    def take_share() -> list[tuple[int, pa.Table]]:
        share = range(runtime.rank, len(groups), runtime.world_size)
        wanted = {
            group: np.arange(-firsts[group] % stride, np.diff(firsts)[group], stride) for group in share
        }
        return [(group, shards.read(*groups[group]).take(array_of(rows))) for group, rows in wanted.items()]

    by_rank = all_gather_objects(runtime.together(take_share))
    parts = sorted(chain.from_iterable(by_rank), key=itemgetter(0))
    return pa.concat_tables(part for _, part in parts).combine_chunks()
