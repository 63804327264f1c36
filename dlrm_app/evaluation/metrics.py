"""Metrics of click predictions: ranking, loss, calibration and accuracy; exact, over all ranks."""

import logging
import math

import torch
from torch.nn import functional as F
from torchmetrics import Metric

from dlrm_app.distributed.collectives import current_rank, sum_in_rank_order
from dlrm_app.evaluation.ranking import average_precision, grouped_auc, rank_scores, roc_auc

logger = logging.getLogger(__name__)
CHUNK = 1 << 20
"""Rows converted to float64 at a time."""


class ClickMetrics(Metric):
    """Metrics of one split's predictions: the same result on every rank, with any number of rows on each.

    Keeps 5 bytes a row, on the device of the logits, and needs about 20 while computing. With ``group_by``
    (the column that groups the rows) these are 9 and about 40, or 13 and about 60 with kept keys. It syncs
    itself (``sync_on_compute`` is off), because torchmetrics would gather all rows to all ranks. Every rank
    must call ``update`` at least once, possibly without rows.
    """

    logits: list[torch.Tensor]
    labels: list[torch.Tensor]
    groups: list[torch.Tensor]

    def __init__(self, split: str, group_by: str | None = None) -> None:
        super().__init__(sync_on_compute=False)
        self.split = split
        self.group_by = group_by
        self.ne_error = math.nan
        """The standard error of ``ne``, once it is computed."""
        self.add_state("logits", [])
        self.add_state("labels", [])
        self.add_state("groups", [])

    def update(self, logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor | None = None) -> None:
        """Adds rows: ``logits`` [n] of any float type (never probabilities), ``labels`` [n] of 0 and 1.

        ``groups`` [n], needed with ``group_by``: ids below 2^31, or keys of 64 bits (int64).
        """
        # copies: a view would keep its whole batch alive, and a compiled model reuses its output's memory
        self.logits.append(logits.detach().to(torch.float32, copy=True))
        self.labels.append(labels.detach() > 0.5)
        if self.group_by is not None:
            assert groups is not None
            kind = torch.int64 if groups.dtype == torch.int64 else torch.int32
            self.groups.append(groups.to(kind, copy=True))

    def compute(self) -> dict[str, float]:
        """Computes ``auc``, ``pr_auc``, ``gauc`` (with ``group_by``), ``logloss`` (nats), ``ne``, ``calibration``,
        ``accuracy``, ``num_samples``, ``positives``.

        ``pr_auc`` is the average precision. ``ne`` is the log loss over that of always predicting the mean label
        (He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook"), ``calibration`` the mean
        prediction over the mean label, ``accuracy`` the share of rows whose prediction is at least 0.5 exactly if
        the label is 1. A metric that is undefined (no rows, or rows of one class) is nan, with a warning that names the
        split.
        """
        logits, labels = self.rows()
        num_samples, positives, nans, loss, prediction, correct, squares, of_positives = sum_in_rank_order(
            _sums(logits, labels)
        ).tolist()
        self.ne_error = _ne_error(num_samples, positives, loss, squares, of_positives)
        if current_rank() == 0 and (nans or positives in (0, num_samples)):
            logger.warning(
                "metrics of %s are undefined (nan): of its %d rows %d are positive, and %d logits are nan",
                *(self.split, num_samples, positives, nans),
            )
        return {
            **self._order(logits, labels, has_nan=nans > 0),
            "logloss": _ratio(loss, num_samples),
            "ne": _ratio(loss, num_samples * entropy(_ratio(positives, num_samples))),
            "calibration": _ratio(prediction, positives),
            "accuracy": math.nan if nans else _ratio(correct, num_samples),
            "num_samples": int(num_samples),
            "positives": int(positives),
        }

    def _order(self, logits: torch.Tensor, labels: torch.Tensor, has_nan: bool) -> dict[str, float]:
        """Computes the ranking metrics."""
        names = ["auc", "pr_auc", *(["gauc"] if self.group_by else [])]
        if has_nan:
            return dict.fromkeys(names, math.nan)
        ranking = rank_scores(logits, labels)
        auc = roc_auc(ranking)
        values = [auc, math.nan if math.isnan(auc) else average_precision(ranking)]
        del ranking  # frees its memory before the groups need theirs
        if self.group_by:
            none = labels.new_empty(0, dtype=torch.int32)
            self.groups = [torch.cat(self.groups) if self.groups else none]
            values.append(grouped_auc(logits, labels, self.groups[0]))
        return dict(zip(names, values, strict=True))

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All of this rank's rows. Replaces the many small tensors, so that rows are not stored twice."""
        if not self.logits:
            return torch.empty(0, device=self.device), torch.empty(0, dtype=torch.bool, device=self.device)
        self.logits = [torch.cat(self.logits)]
        self.labels = [torch.cat(self.labels)]
        return self.logits[0], self.labels[0]


def _sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sums, float64 [8]: rows, positives, nan logits, log losses, predictions, rows that are right
    at 0.5, squares of log losses, log losses of positives.
    """
    sums = torch.zeros(8, dtype=torch.float64, device=logits.device)
    for some, positive in zip(torch.split(logits, CHUNK), torch.split(labels, CHUNK), strict=True):
        wide = some.double()
        # -log(sigmoid(x)) of a positive, -log(1 - sigmoid(x)) of a negative, without overflow
        losses = F.softplus(torch.where(positive, -wide, wide), threshold=40)
        correct = (some >= 0) == positive
        terms = [torch.ones_like(wide), positive, some.isnan(), losses, wide.sigmoid(), correct]
        terms += [losses.square(), losses * positive]
        sums += torch.stack([term.sum(dtype=torch.float64) for term in terms])
    return sums


def entropy(rate: float) -> float:
    """The log loss, in nats, of always predicting ``rate`` if that share of the labels is 1."""
    return -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)


def _ne_error(rows: float, positives: float, loss: float, squares: float, of_positives: float) -> float:
    """The standard error of NE: that of the mean difference between each row's
    log loss and a constant's, over the entropy.

    nan if NE is.
    """
    if not 0 < positives < rows:
        return math.nan
    rate = positives / rows
    constant = entropy(rate)
    of_click, of_none = -math.log(rate), -math.log1p(-rate)  # a constant's log losses
    # the sum of squared differences, from sums over the rows
    crossed = of_click * of_positives + of_none * (loss - of_positives)
    constants = positives * of_click**2 + (rows - positives) * of_none**2
    mean = loss / rows - constant
    variance = max(0.0, (squares - 2 * crossed + constants) / rows - mean**2)
    return math.sqrt(variance / rows) / constant


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan
