"""How good click predictions are: AUC, log loss, normalized entropy, calibration; exact, over all ranks."""

import logging
import math

import torch
from torch.nn import functional as F
from torchmetrics import Metric

from dlrm_app.training.auc import roc_auc
from dlrm_app.training.collectives import own_rank, total

logger = logging.getLogger(__name__)
CHUNK = 1 << 20
"""Rows widened to float64 at a time."""


class ClickMetrics(Metric):
    """Metrics of one split's predictions, the same on every rank, with any number of rows on each.

    Keeps 5 bytes a row, on the device of the logits, and takes about 20 for the moment of computing. It syncs
    itself (``sync_on_compute`` is off), for torchmetrics would gather all rows to all ranks. Every rank must
    call ``update`` at least once, if only without rows.
    """

    logits: list[torch.Tensor]
    labels: list[torch.Tensor]

    def __init__(self, split: str) -> None:
        super().__init__(sync_on_compute=False)
        self.split = split
        self.add_state("logits", [])
        self.add_state("labels", [])

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Adds rows: ``logits`` [n] of any float type (never probabilities), ``labels`` [n] of 0 and 1."""
        # copies: a view would keep its whole batch alive, and a compiled model reuses its output's memory
        self.logits.append(logits.detach().to(torch.float32, copy=True))
        self.labels.append(labels.detach() > 0.5)

    def compute(self) -> dict[str, float]:
        """``auc``, ``logloss`` (nats), ``ne``, ``calibration``, ``num_samples``, ``positives``.

        ``ne`` is the log loss over that of always predicting the mean label (He et al. 2014, "Practical
        lessons from predicting clicks on ads at Facebook"), ``calibration`` the mean prediction over the
        mean label. What no rows, or rows of one class, leave undefined is nan, with a warning that names the
        split.
        """
        logits, labels = self.rows()
        num_samples, positives, nans, loss, prediction = total(_sums(logits, labels)).tolist()
        self._warn_of_nan(int(num_samples), int(positives), int(nans))
        return {
            "auc": math.nan if nans else roc_auc(logits, labels),
            "logloss": _ratio(loss, num_samples),
            "ne": _ratio(loss, num_samples * _entropy(_ratio(positives, num_samples))),
            "calibration": _ratio(prediction, positives),
            "num_samples": int(num_samples),
            "positives": int(positives),
        }

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All of this rank's rows. Replaces the many small tensors, so that rows are not held twice."""
        if not self.logits:
            return torch.empty(0, device=self.device), torch.empty(0, dtype=torch.bool, device=self.device)
        self.logits = [torch.cat(self.logits)]
        self.labels = [torch.cat(self.labels)]
        return self.logits[0], self.labels[0]

    def _warn_of_nan(self, num_samples: int, positives: int, nans: int) -> None:
        if own_rank() != 0:
            return
        if not num_samples:
            logger.warning("%s has no rows: its metrics are undefined (nan)", self.split)
        elif nans:
            logger.warning("%s: %d of %d logits are nan, so are its metrics", self.split, nans, num_samples)
        elif positives in (0, num_samples):
            logger.warning(
                "all %d labels of %s are %d: AUC and normalized entropy are undefined (nan)",
                num_samples,
                self.split,
                positives > 0,
            )


def _sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[5] float64: rows, positives, nan logits, log losses, predictions."""
    sums = torch.zeros(5, dtype=torch.float64, device=logits.device)
    for some, positive in zip(torch.split(logits, CHUNK), torch.split(labels, CHUNK), strict=True):
        wide = some.double()
        # -log(sigmoid(x)) of a positive, -log(1 - sigmoid(x)) of a negative, without overflow
        losses = F.softplus(torch.where(positive, -wide, wide), threshold=40)
        terms = [torch.ones_like(wide), positive, some.isnan(), losses, wide.sigmoid()]
        sums += torch.stack([term.sum(dtype=torch.float64) for term in terms])
    return sums


def _entropy(rate: float) -> float:
    """The log loss, in nats, of always predicting ``rate`` when that share of the labels is 1."""
    return -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan
