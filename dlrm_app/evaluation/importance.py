"""Permutation importance: how much a metric falls when a column of the log is shuffled among the evaluated rows.

Breiman 2001, "Random forests". All that is made of a column (buckets, crosses, click rates) moves by the same
permutation. Two columns that say the same hide each other, because the model can still read the other one. So pairs of
which one column predicts the other are also shuffled together.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.columns import columns_of_log
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.evaluate import ForwardPasses
from dlrm_app.evaluation.importance_result import ColumnImportance, Importance, PairImportance
from dlrm_app.evaluation.label_rows import rows_of_labels
from dlrm_app.evaluation.metric_fall import MetricFall
from dlrm_app.evaluation.scored_rows import ScoredRows
from dlrm_app.loader.batch_order import IMPORTANCE, permutation
from dlrm_app.loader.shuffled_rows import SampledRows
from dlrm_app.progress import progress_bar
from dlrm_app.sharding.sharder import undisturbed

MOST_PAIRS = 5
"""Pairs that are shuffled together: those of which one column tells most of the other."""
LEAST_TOLD = 0.3
"""The share of the other column's mistakes that a column must save to make a pair."""
_MOST_COLUMNS, _MOST_ROWS, _BINS = 64, 20_000, 16
"""The most columns (the most important ones first) and rows in which pairs are searched, and the bins of a number."""


class _Shuffles:
    """Scores rows with shuffled columns. Every rank makes the same calls."""

    def __init__(
        self, passes: ForwardPasses, rows: SampledRows, metric: str, repeats: int, confidence: float
    ) -> None:
        self._passes, self._rows, self._confidence = passes, rows, confidence
        keys = None if rows.own_keys is None else torch.from_numpy(rows.own_keys)
        self._label = rows_of_labels(rows.manifest, rows.split)[0]
        self._orders = [permutation(len(rows.numbers), 0, number, IMPORTANCE) for number in range(repeats)]
        self._plain = self._score()
        self._fall = MetricFall(metric, None if keys is None else keys.to(self._plain.logits.device))

    def fall(self, columns: Collection[str]) -> tuple[float, float, float]:
        """The mean fall of the metric over all repeats when ``columns`` are shuffled, and its interval."""
        shuffled = [self._score(columns, order).logits for order in self._orders]
        found = self._fall.between(self._plain, shuffled, self._confidence)
        return found.value, found.low, found.high

    @torch.no_grad()
    def _score(self, shuffled: Collection[str] = (), order: NDArray[np.int64] | None = None) -> ScoredRows:
        parts: list[ScoredRows] = []
        model, batches = self._passes.model.eval(), self._rows.batches(shuffled, order)
        with undisturbed(model), closing(self._passes.over(batches)) as scored:
            for batch, logits in scored:
                valid = slice(batch.num_valid)
                rows, _ = self._label.scored(logits[valid], batch.supervision[valid])
                parts.append(rows.detached())
        model.train()
        return ScoredRows.joined(parts)


def measure_importance(
    passes: ForwardPasses,
    rows: SampledRows,
    runtime: Runtime,
    *,
    metric: str,
    repeats: int,
    confidence: float,
    title: str,
) -> Importance:
    """The fall of the main label's ``metric`` for each column of the log that the model of ``passes`` reads.

    metric: a name such as ``auc`` or ``ndcg@10``; for metrics of groups, ``rows`` must have groups. Every rank must
    call it, with no pipeline attached.
    """
    made = {
        name: [each for each in columns if each in rows.columns]
        for name, columns in columns_of_log(rows.manifest).items()
    }
    made = {name: columns for name, columns in made.items() if columns}
    shuffles = _Shuffles(passes, rows, metric, repeats, confidence)
    with progress_bar(title, len(made) + MOST_PAIRS, runtime.is_first, unit="column") as bar:
        columns = []
        for name, parts in made.items():
            columns.append(
                ColumnImportance(name, *shuffles.fall(parts), made=[each for each in parts if each != name])
            )
            bar.update(1)
        columns.sort(key=lambda each: -each.fall)
        pairs = []
        for first, second in telling_pairs(rows, made, [each.column for each in columns]):
            together = list(dict.fromkeys([*made[first], *made[second]]))
            pairs.append(PairImportance([first, second], *shuffles.fall(together)))
            bar.update(1)
    return Importance(len(rows.numbers), repeats, columns, pairs, metric)


def telling_pairs(
    rows: SampledRows, made: Mapping[str, Sequence[str]], ordered: Sequence[str]
) -> list[tuple[str, str]]:
    """The pairs of columns of which one tells most of the other, the closest first.

    ``made``: column of the log → columns of the dataset; ``ordered``: the columns of the log, the important ones first.
    """
    step = -(-len(rows.numbers) // _MOST_ROWS) or 1
    codes = {}
    for name in ordered[:_MOST_COLUMNS]:
        values = rows.column(name if name in made[name] else made[name][0])
        codes[name] = _codes(values)[::step]
    told = {
        pair: max(told_share(codes[pair[0]], codes[pair[1]]), told_share(codes[pair[1]], codes[pair[0]]))
        for pair in combinations(codes, 2)
        if {*made[pair[0]]} != {*made[pair[1]]}
    }
    closest = sorted(told, key=lambda pair: -told[pair])
    return [pair for pair in closest if told[pair] >= LEAST_TOLD][:MOST_PAIRS]


def _codes(values: NDArray[np.float32] | NDArray[np.int32] | Bags) -> NDArray[np.int64]:
    """A number for each row: its id, the quantile of its number, or the last element of its list (-1 if it is empty)."""
    if isinstance(values, Bags):
        last = np.full(len(values.offsets) - 1, -1, np.int64)
        is_filled = np.diff(values.offsets) > 0
        last[is_filled] = values.values[values.offsets[1:][is_filled] - 1]
        return last
    if values.dtype == np.float32:
        bounds = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS))
        return np.searchsorted(bounds, values, side="right").astype(np.int64)
    return values.astype(np.int64)


def told_share(known: NDArray[np.int64], wanted: NDArray[np.int64]) -> float:
    """How well ``known`` [n] predicts ``wanted`` [n]: the share of mistakes that are avoided, compared with always
    guessing the most frequent value.

    Goodman and Kruskal's lambda (1954), learnt on every other row and measured on the rest, so that ids that occur once
    tell nothing.
    """
    _, known = np.unique(known, return_inverse=True)
    _, wanted = np.unique(wanted, return_inverse=True)
    if not len(wanted):
        return 0.0
    width = int(wanted.max()) + 1
    commonest = int(np.bincount(wanted[::2]).argmax())
    pairs, counts = np.unique(known[::2] * width + wanted[::2], return_counts=True)
    order = np.argsort(counts, kind="stable")  # the most frequent pair of a value is written last
    guesses = np.full(int(known.max()) + 1, commonest)
    guesses[pairs[order] // width] = pairs[order] % width
    truth = wanted[1::2]
    by_value, plain = (guesses[known[1::2]] != truth).mean(), (truth != commonest).mean()
    return float(1 - by_value / plain) if plain > 0 else 0.0
