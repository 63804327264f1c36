"""ROC curve and reliability diagram of predictions on all ranks, for curves.json.

roc: points from (0, 0) to (1, 1); a row counts as positive if its probability is at least ``threshold``. None
if all rows have one class. reliability: bins with about equal numbers of rows, by rising prediction, with the
range and mean of their predictions.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from dlrm_app.distributed.collectives import all_gather_stacked, all_reduce_sum
from dlrm_app.evaluation.ranking import CHUNK
from dlrm_app.evaluation.scored_rows import ScoredRows

NUM_BUCKETS = 1 << 16
"""Buckets between the lowest and the highest logit.

All counts are exact for scores rounded down to the buckets' edges.
"""
MAX_LOGIT = 100.0
"""Logits beyond this are clamped: their probability is 0 or 1 to the last bit anyway."""
NUM_ROC_POINTS, NUM_RELIABILITY_BINS = 200, 20
Floats = NDArray[np.float64]
BucketCounts = NDArray[np.int64] | NDArray[np.float64]
Lists = dict[str, list[float]]


def measure_curves(rows: ScoredRows) -> dict[str, object] | None:
    """Curves of rows; those with a logit of nan are left out. None if there are no rows.

    If rows have weights, all counts are sums of weights; rows of weight 0 are left out.

    Every rank passes its own rows, any number of them. All get the same curves, for every number of ranks.
    """
    is_used = ~rows.logits.isnan()
    if rows.is_weighted:
        is_used &= rows.weights > 0
    rows = rows[is_used]
    rows = replace(rows, logits=rows.logits.clamp(-MAX_LOGIT, MAX_LOGIT))
    low, high = _range(rows.logits)
    if low > high:
        return None
    num_rows = int(all_reduce_sum(torch.tensor(len(rows), device=rows.logits.device)))
    counts, predictions = _count(rows, low, high)
    negatives, positives = counts.cpu().numpy()
    edges = np.linspace(low, high, NUM_BUCKETS + 1)
    return {
        "num_samples": num_rows,
        "roc": _roc(negatives, positives, edges),
        "reliability": _reliability(negatives + positives, positives, predictions.cpu().numpy(), edges),
    }


def _range(logits: torch.Tensor) -> tuple[float, float]:
    """The lowest and the highest logit of all ranks; (inf, -inf) if there are none."""
    local = torch.tensor([torch.inf, -torch.inf], device=logits.device)
    if logits.numel():
        local = torch.stack(list(logits.aminmax()))
    by_rank = all_gather_stacked(local)
    return float(by_rank[:, 0].min()), float(by_rank[:, 1].max())


def _count(rows: ScoredRows, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows by label [2, buckets], sums of their predictions [buckets]), over all ranks."""
    kind, device = torch.float64 if rows.is_weighted else torch.int64, rows.logits.device
    counts = torch.zeros(2 * NUM_BUCKETS, dtype=kind, device=device)
    predictions = torch.zeros(NUM_BUCKETS, dtype=torch.float64, device=device)
    scale = NUM_BUCKETS / (high - low) if high > low else 0.0
    for begin in range(0, len(rows), CHUNK):
        some = rows[begin : begin + CHUNK]
        wide, positive = some.logits.double(), some.labels
        bucket = ((wide - low) * scale).long().clamp_(max=NUM_BUCKETS - 1)
        # on a GPU bincount adds numbers that are not whole in no fixed order
        if not rows.is_weighted:
            counts += torch.bincount(bucket + NUM_BUCKETS * positive, minlength=2 * NUM_BUCKETS)
            predictions.scatter_add_(0, bucket, wide.sigmoid())
        else:
            once = some.weights.double()
            counts.scatter_add_(0, bucket + NUM_BUCKETS * positive, once)
            predictions.scatter_add_(0, bucket, wide.sigmoid() * once)
    return all_reduce_sum(counts).view(2, NUM_BUCKETS), all_reduce_sum(predictions)


def _roc(negatives: BucketCounts, positives: BucketCounts, edges: Floats) -> Lists | None:
    """The ROC curve: at most NUM_ROC_POINTS + 1 points, spread evenly along it (by the sum of both rates)."""
    if not negatives.sum() or not positives.sum():
        return None
    false_rate, true_rate = (
        np.concatenate([[0], counts[::-1].cumsum()]) / counts.sum() for counts in (negatives, positives)
    )
    wanted = np.linspace(0, 2, NUM_ROC_POINTS + 1)
    points = np.unique(np.searchsorted(false_rate + true_rate, wanted).clip(max=NUM_BUCKETS))
    return {
        "false_positive_rate": false_rate[points].tolist(),
        "true_positive_rate": true_rate[points].tolist(),
        "threshold": _sigmoid(edges[::-1][points]).tolist(),
    }


def _reliability(rows: BucketCounts, positives: BucketCounts, predictions: Floats, edges: Floats) -> Lists:
    behind = rows.cumsum()
    wanted = np.arange(1, NUM_RELIABILITY_BINS + 1) * behind[-1] / NUM_RELIABILITY_BINS
    stops = np.unique(np.searchsorted(behind, wanted) + 1)
    starts = np.concatenate([[0], stops[:-1]])
    count = np.add.reduceat(rows, starts)
    return {
        "low": _sigmoid(edges[starts]).tolist(),
        "high": _sigmoid(edges[stops]).tolist(),
        "count": count.tolist(),
        "positives": np.add.reduceat(positives, starts).tolist(),
        "mean_prediction": (np.add.reduceat(predictions, starts) / count).tolist(),
    }


def _sigmoid(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
