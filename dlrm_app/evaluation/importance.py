"""Importance of features: the AUC that a model loses where a feature's values are permuted.

Breiman 2001, "Random forests", section 10; defined as scikit-learn's permutation_importance: all other columns stay.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, variance

import numpy as np
import pyarrow as pa
import torch

from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader
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
    sample = runtime.together(lambda: sample_rows(manifest, config.split, reader, settings.rows))
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
        lost = []
        for repeat in range(settings.repeats):
            order = array_of(permutation(len(sample), settings.seed, repeat, COLUMN_ORDER, number))
            column = sample.schema.get_field_index(name)
            permuted = sample.set_column(column, name, sample.column(name).take(order))
            title = f"importance of {name}, {number + 1} of {len(names)}"
            logits, _ = score(permuted, title)
            lost.append(compare_aucs(as_it_is[0], logits, as_it_is[1]).difference)
        found.append(FeatureImportance(name, over_repeats(lost, config.confidence)))
    found.sort(key=lambda each: -each.auc_lost.value)
    return Importance(len(sample), settings.repeats, config.confidence, found)


def _share(rows: Rows, maker: BatchMaker, batch_size: int, runtime: Runtime) -> list[Batch]:
    """This rank's batches of ``rows``; all ranks have equally many, and the last may be short or empty."""
    rank, world_size = runtime.rank, runtime.world_size
    begin, end = (part * len(rows) // world_size for part in (rank, rank + 1))
    num_batches = -(-len(rows) // (world_size * batch_size))
    return maker.make(Ranges([rows], np.array([[begin, end, 0]], np.int64), batch_size, num_batches))


def over_repeats(changes: Sequence[Interval], confidence: float) -> Interval:
    """The mean of ``changes`` and its interval: the rows' share of the error is common to all repeats, the order's is not.

    The variance is the mean of those over rows, and that between repeats over their number.
    """
    values = [each.value for each in changes]
    error = math.sqrt(fmean(each.standard_error**2 for each in changes) + variance(values) / len(values))
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    mean = fmean(values)
    return Interval(mean, error, mean - reach, mean + reach)


def sample_rows(manifest: Manifest, split: str, reader: TableReader, max_rows: int) -> pa.Table:
    """Every k-th row of a split, at most ``max_rows``."""
    shards = ShardReader(manifest.folder, reader.columns(has_label=True))
    groups = [(each, n) for each in manifest.splits[split].shards for n in range(len(each.row_groups))]
    firsts = np.cumsum([0, *(shard.row_groups[n] for shard, n in groups)])
    stride = max(1, -(-int(firsts[-1]) // max_rows))
    wanted = [
        np.arange(-first % stride, rows, stride) for first, rows in zip(firsts, np.diff(firsts), strict=False)
    ]
    parts = (shards.read(*group).take(array_of(rows)) for group, rows in zip(groups, wanted, strict=True))
    return pa.concat_tables(parts).combine_chunks()
