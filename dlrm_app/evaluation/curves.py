"""ROC curve and reliability diagram of predictions spread over all ranks, as curves.json has them.

roc: points from (0, 0) to (1, 1), a row is called positive from ``threshold`` (a probability) on; None where all rows are of
one class. reliability: bins of about equally many rows, by rising prediction, with the range and the mean of their
predictions.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dlrm_app.distributed.collectives import all_gather_stacked, all_reduce_sum

NUM_BUCKETS = 1 << 16
"""Between the lowest and the highest logit: every count below is exact for scores cut at the buckets' edges."""
MAX_LOGIT = 100.0
"""Logits past it count as it: its probability is 0 or 1 to the last bit anyway."""
NUM_ROC_POINTS, NUM_RELIABILITY_BINS = 200, 20
CHUNK = 1 << 20
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Lists = dict[str, list[float]]


def measure_curves(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Any] | None:
    """Curves of ``logits`` [n] float32 with ``labels`` [n] bool, without rows whose logit is nan; None if there are no rows.

    Every rank gives its own rows, any number of them, and gets the same curves, whatever the number of ranks.
    """
    is_number = ~logits.isnan()
    logits, labels = logits[is_number].clamp(-MAX_LOGIT, MAX_LOGIT), labels[is_number]
    low, high = _range(logits)
    if low > high:
        return None
    counts, predictions = _count(logits, labels, low, high)
    negatives, positives = counts.cpu().numpy()
    edges = np.linspace(low, high, NUM_BUCKETS + 1)
    return {
        "num_samples": int(negatives.sum() + positives.sum()),
        "roc": _roc(negatives, positives, edges),
        "reliability": _reliability(negatives + positives, positives, predictions.cpu().numpy(), edges),
    }


def _range(logits: torch.Tensor) -> tuple[float, float]:
    """The lowest and the highest logit of all ranks; (inf, -inf) without any."""
    local = torch.tensor([torch.inf, -torch.inf], device=logits.device)
    if logits.numel():
        local = torch.stack(list(logits.aminmax()))
    by_rank = all_gather_stacked(local)
    return float(by_rank[:, 0].min()), float(by_rank[:, 1].max())


def _count(
    logits: torch.Tensor, labels: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Over all ranks: ([2, buckets] rows by label, [buckets] sums of their predictions)."""
    counts = torch.zeros(2 * NUM_BUCKETS, dtype=torch.int64, device=logits.device)
    predictions = torch.zeros(NUM_BUCKETS, dtype=torch.float64, device=logits.device)
    scale = NUM_BUCKETS / (high - low) if high > low else 0.0
    for some, positive in zip(torch.split(logits, CHUNK), torch.split(labels, CHUNK), strict=True):
        wide = some.double()
        bucket = ((wide - low) * scale).long().clamp_(max=NUM_BUCKETS - 1)
        counts += torch.bincount(bucket + NUM_BUCKETS * positive, minlength=2 * NUM_BUCKETS)
        predictions.scatter_add_(0, bucket, wide.sigmoid())  # on a GPU bincount's sums have no fixed order
    return all_reduce_sum(counts).view(2, NUM_BUCKETS), all_reduce_sum(predictions)


def _roc(negatives: Counts, positives: Counts, edges: Floats) -> Lists | None:
    """At most NUM_ROC_POINTS + 1 points, spread evenly along the curve (by the sum of both rates)."""
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


def _reliability(rows: Counts, positives: Counts, predictions: Floats, edges: Floats) -> Lists:
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
