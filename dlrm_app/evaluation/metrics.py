"""Metrics of click predictions: ranking, loss, calibration and accuracy; exact, over all ranks."""

import logging
import math
from collections.abc import Sequence

import torch
from torch.nn import functional as F
from torchmetrics import Metric

from dlrm_app.distributed.collectives import current_rank, sum_in_rank_order
from dlrm_app.evaluation.group_ranking import measure_groups, undefined_groups
from dlrm_app.evaluation.grouped_auc import collect_groups
from dlrm_app.evaluation.ranking import CHUNK, average_precision, rank_scores, roc_auc, without_weights
from dlrm_app.evaluation.scored_rows import ScoredRows

logger = logging.getLogger(__name__)


class ClickMetrics(Metric):
    """Metrics of one split's predictions: the same result on every rank, with any number of rows on each.

    Rows may have weights: each then counts by its weight, in every metric. Without them a row counts once.

    Keeps 5 bytes a row, on the device of the logits, and needs about 20 while computing. With ``group_by``
    (the column that groups the rows) these are 9 and about 40, or 13 and about 60 with kept keys. Weights add
    4 and about 30. It syncs itself (``sync_on_compute`` is off), because torchmetrics would gather all rows
    to all ranks. Every rank must call ``update`` at least once, possibly without rows.
    """

    logits: list[torch.Tensor]
    labels: list[torch.Tensor]
    groups: list[torch.Tensor]
    weights: list[torch.Tensor]

    def __init__(
        self, split: str, group_by: str | None = None, warns: bool = True, ranking: Sequence[int] = ()
    ) -> None:
        super().__init__(sync_on_compute=False)
        self._warns = warns
        self.split = split
        self.group_by = group_by
        self.ranking = ranking
        """The k of the metrics of groups."""
        self.ne_error = math.nan
        """The standard error of ``ne``, once it is computed."""
        self.add_state("logits", [])
        self.add_state("labels", [])
        self.add_state("groups", [])
        self.add_state("weights", [])

    def update(self, rows: ScoredRows, groups: torch.Tensor | None = None) -> None:
        """Adds rows. ``groups`` [n], needed with ``group_by``: ids below 2^31, or keys of 64 bits (int64).

        All calls on all ranks give rows with weights, or none does.
        """
        # copies: a view would keep its whole batch alive, and a compiled model reuses its output's memory
        self.logits.append(rows.logits.detach().to(torch.float32, copy=True))
        self.labels.append(rows.labels.detach().to(torch.bool, copy=True))
        if self.group_by is not None:
            assert groups is not None
            kind = torch.int64 if groups.dtype == torch.int64 else torch.int32
            self.groups.append(groups.to(kind, copy=True))
        if rows.is_weighted:
            self.weights.append(rows.weights.detach().to(torch.float32, copy=True))

    def compute(self) -> dict[str, float]:
        """Computes ``auc``, ``pr_auc``, ``logloss`` (nats), ``ne``, ``calibration``, ``accuracy``, ``num_samples``,
        ``positives``, and with ``group_by`` the metrics of ``measure_groups``.

        ``pr_auc`` is the average precision. ``ne`` is the log loss over that of always predicting the mean label
        (He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook"), ``calibration`` the mean
        prediction over the mean label, ``accuracy`` the share of rows whose prediction is at least 0.5 exactly if
        the label is 1. A metric that is undefined (no rows, or rows of one class) is nan, with a warning that names the
        split. Rows with weights count by these, but in ``num_samples`` and ``positives``; then there are also
        ``weight`` (their sum), ``auc_unweighted``, ``effective_positives`` and ``effective_negatives``.
        """
        scored = self.rows()
        sums = sum_in_rank_order(_sums(scored))
        num_samples, num_positives, nans = sums[0, :3].tolist()
        rows, positives, loss, _, _, prediction, correct = sums[1].tolist()
        self.ne_error = _ne_error(rows, positives, loss, sums[2].tolist())
        if self._warns and current_rank() == 0 and (nans or positives in (0, rows)):
            weight = f" (of a weight of {rows:g}, {positives:g})" if scored.is_weighted else ""
            logger.warning(
                f"metrics of {self.split} are undefined (nan): of its {num_samples:.0f} rows {num_positives:.0f} are "
                f"positive{weight}, and {nans:.0f} logits are nan"
            )
        return {
            **self._order(scored, has_nan=nans > 0),
            "logloss": _ratio(loss, rows),
            "ne": _ratio(loss, rows * entropy(_ratio(positives, rows))),
            "calibration": _ratio(prediction, positives),
            "accuracy": math.nan if nans else _ratio(correct, rows),
            "num_samples": int(num_samples),
            "positives": int(num_positives),
            **({"weight": rows, **_effective(sums)} if scored.is_weighted else {}),
        }

    def _order(self, rows: ScoredRows, has_nan: bool) -> dict[str, float]:
        unweighted = {"auc_unweighted": math.nan} if rows.is_weighted else {}
        if has_nan:
            of_groups = undefined_groups(self.ranking) if self.group_by else {}
            return {**dict.fromkeys(["auc", "pr_auc", *unweighted], math.nan), **of_groups}
        ranking = rank_scores(rows)
        auc = roc_auc(ranking)
        found = {"auc": auc, "pr_auc": math.nan if math.isnan(auc) else average_precision(ranking)}
        if rows.is_weighted:
            unweighted = {"auc_unweighted": roc_auc(without_weights(ranking))}
        del ranking  # frees its memory before the groups need theirs
        of_groups = measure_groups(collect_groups(rows, self.keys()), self.ranking) if self.group_by else {}
        return {**found, **of_groups, **unweighted}

    def keys(self) -> torch.Tensor:
        """The groups [n] of this rank's rows, as ``update`` takes them."""
        self.groups = [torch.cat(self.groups or [torch.empty(0, dtype=torch.int32, device=self.device)])]
        return self.groups[0]

    def rows(self) -> ScoredRows:
        """All of this rank's rows. Replaces the many small tensors, so that rows are not stored twice."""
        if not self.logits:
            none = torch.empty(0, device=self.device)
            return ScoredRows.unweighted(none, none.bool())
        self.logits = [torch.cat(self.logits)]
        self.labels = [torch.cat(self.labels)]
        if not self.weights:
            return ScoredRows.unweighted(self.logits[0], self.labels[0])
        self.weights = [torch.cat(self.weights)]
        return ScoredRows(self.logits[0], self.labels[0], self.weights[0])


def _sums(rows: ScoredRows) -> torch.Tensor:
    """Sums over rows, float64 [3, 7]. First, of numbers of rows: all, positives, those with nan logits (then zeros).

    Then, of rows that count by their weights, and of rows that count by the squares of these: all, positives, log
    losses, log losses of positives, squares of log losses, predictions, rows that are right at 0.5.
    """
    sums = torch.zeros(3, 7, dtype=torch.float64, device=rows.logits.device)
    pieces = (torch.split(each, CHUNK) for each in (rows.logits, rows.labels, rows.weights))
    for some, positive, part in zip(*pieces, strict=True):
        wide = some.double()
        # -log(sigmoid(x)) of a positive, -log(1 - sigmoid(x)) of a negative, without overflow
        losses = F.softplus(torch.where(positive, -wide, wide), threshold=40)
        correct = (some >= 0) == positive
        ones = torch.ones_like(wide)
        terms = [ones, positive, losses, losses * positive, losses.square(), wide.sigmoid(), correct]
        sums[0, :3] += _added([ones, positive, some.isnan()])
        if not rows.is_weighted:
            sums[1] += _added(terms)
        else:
            once = part.double()
            sums[1] += _added([term * once for term in terms])
            sums[2] += _added([term * once.square() for term in terms])
    if not rows.is_weighted:
        sums[2] = sums[1]
    return sums


def _added(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([term.sum(dtype=torch.float64) for term in terms])


def _effective(sums: torch.Tensor) -> dict[str, float]:
    """The effective numbers of positives and negatives, (Σw)² / Σw² of each (Kish 1965): that many rows without weights
    would hold as much information.

    ``sums``: those of ``_sums`` over all ranks.
    """
    (all_rows, positives), (squares, of_positives) = sums[1, :2].tolist(), sums[2, :2].tolist()
    negatives, of_negatives = all_rows - positives, squares - of_positives
    pairs = {"positives": (positives, of_positives), "negatives": (negatives, of_negatives)}
    return {f"effective_{name}": _ratio(w**2, squared) for name, (w, squared) in pairs.items()}


def entropy(rate: float) -> float:
    """The log loss, in nats, of always predicting ``rate`` if that share of the labels is 1."""
    return -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)


def _ne_error(rows: float, positives: float, loss: float, squared: Sequence[float]) -> float:
    """The standard error of NE: that of the mean difference between each row's log loss and a constant's,
    over the entropy.

    rows, positives, loss: sums over rows, by their weights w; ``squared``: the sums of ``_sums`` by w². A row with its
    weight is one independent draw, so the variance of the mean of differences d, Σwd / Σw, is Σw²(d - mean)² / (Σw)².
    nan if NE is.
    """
    if not 0 < positives < rows:
        return math.nan
    rate = positives / rows
    constant = entropy(rate)
    of_click, of_none = -math.log(rate), -math.log1p(-rate)  # a constant's log losses
    # the sums of differences and of their squares, from sums over the rows
    all_rows, all_positives, losses, of_positives, squares, *_ = squared
    crossed = of_click * of_positives + of_none * (losses - of_positives)
    constants = all_positives * of_click**2 + (all_rows - all_positives) * of_none**2
    differences = losses - all_positives * of_click - (all_rows - all_positives) * of_none
    mean = loss / rows - constant
    spread = squares - 2 * crossed + constants - 2 * mean * differences + mean**2 * all_rows
    return math.sqrt(max(0.0, spread)) / rows / constant


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan
