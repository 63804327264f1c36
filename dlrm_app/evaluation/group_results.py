"""Metrics of groups with intervals over the groups, and paired differences between two models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dlrm_app.config.metrics import group_metric_names
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.evaluation.group_ranking import group_values
from dlrm_app.evaluation.grouped_auc import GroupValues, collect_groups
from dlrm_app.evaluation.intervals import compare_groups, group_intervals
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.evaluation.result import GroupResult, Interval
from dlrm_app.evaluation.scored_rows import ScoredRows


@dataclass(frozen=True, eq=False)
class GroupedScores:
    """This rank's ``rows`` and their groups ``keys`` [n], for the metrics at the k in ``ranking``."""

    rows: ScoredRows
    keys: torch.Tensor
    ranking: Sequence[int]

    @classmethod
    def of(cls, metrics: ClickMetrics) -> "GroupedScores | None":
        """The rows of ``metrics``; None if they have no groups."""
        if metrics.group_by is None:
            return None
        return cls(metrics.rows(), metrics.keys(), metrics.ranking)

    def values(self) -> Mapping[str, GroupValues]:
        return group_values(collect_groups(self.rows, self.keys), self.ranking)

    def are_undefined(self) -> bool:
        """True, on every rank, if a score is NaN."""
        return any(all_gather_objects(bool(self.rows.logits.isnan().any())))


def group_results(
    scores: GroupedScores | None, first: GroupedScores | None, confidence: float
) -> list[GroupResult]:
    """The metrics of the groups of ``scores``, compared with those of the ``first`` model on the same rows.

    first: None for the first model itself. Every rank must call it.
    """
    if scores is None:
        return []
    if scores.are_undefined():
        nothing = Interval(*[math.nan] * 4)
        return [GroupResult(name, nothing) for name in group_metric_names(scores.ranking)]
    values = scores.values()
    if first is None or first.are_undefined():
        return group_intervals(values, confidence)
    # another encoding of the same rows may number the groups in another way
    own = GroupedScores(replace(first.rows, logits=scores.rows.logits), first.keys, scores.ranking)
    has_same_groups = all(all_gather_objects(torch.equal(scores.keys, first.keys)))
    return compare_groups(values, values if has_same_groups else own.values(), first.values(), confidence)
