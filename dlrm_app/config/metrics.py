"""Names of metrics that can decide which of several evaluations is the best, and which direction is better.

Does not import torch. A metric at k has a name such as ``ndcg@10``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dlrm_app.errors import Problem


@dataclass(frozen=True)
class Metric:
    """A metric's title, and the direction that is better.

    of_groups: computed within groups of rows (evaluation.group_by). at_k: computed for the k of evaluation.ranking.
    of_one_class: defined for rows that are all clicks, or none.
    """

    title: str
    rises: bool = True
    of_groups: bool = False
    at_k: bool = False
    of_one_class: bool = False

    @property
    def sign(self) -> int:
        """1 if the highest value is the best, -1 if the lowest is."""
        return 1 if self.rises else -1


METRICS = {
    "auc": Metric("AUC"),
    "pr_auc": Metric("PR-AUC"),
    "logloss": Metric("log loss", rises=False, of_one_class=True),
    "ne": Metric("NE", rises=False),
    "gauc": Metric("GAUC", of_groups=True),
    "mrr": Metric("MRR", of_groups=True),
    "ndcg": Metric("NDCG", of_groups=True, at_k=True),
    "hit_rate": Metric("hit rate", of_groups=True, at_k=True),
    "precision": Metric("precision", of_groups=True, at_k=True),
}


def split_name(name: str) -> tuple[str, int | None]:
    """``ndcg@10`` → ("ndcg", 10), ``auc`` → ("auc", None)."""
    kind, at, k = name.partition("@")
    return kind, int(k) if at and k.isdecimal() else None


def metric_of(name: str) -> Metric | None:
    """The metric of a ``name`` such as ``ndcg@10``, whose title has the k; None if there is none of this name."""
    kind, k = split_name(name)
    found = METRICS.get(kind)
    if (
        found is None
        or found.at_k != (k is not None)
        or name != (kind if k is None else f"{kind}@{k}")
        or k == 0
    ):
        return None
    return found if k is None else replace(found, title=f"{found.title}@{k}")


def group_metric_names(ranking: Sequence[int]) -> list[str]:
    """The names of all metrics of groups, for the k in ``ranking``."""
    return [
        name
        for kind, metric in METRICS.items()
        if metric.of_groups
        for name in ([f"{kind}@{k}" for k in ranking] if metric.at_k else [kind])
    ]


def merit(name: str, metrics: Mapping[str, float]) -> tuple[float, float]:
    """Orders evaluations of one split by the metric ``name``: higher is better.

    The log loss decides where the metric is undefined, such as the AUC of rows of one class; these come last.
    """
    metric, value = metric_of(name), metrics.get(name, math.nan)
    if metric is not None and not math.isnan(value):
        return metric.sign * value, 0.0
    loss = metrics.get("logloss", math.nan)
    return -math.inf, -math.inf if math.isnan(loss) else -loss


def ranking_problems(ranking: Sequence[int]) -> Iterator[Problem]:
    """A problem for each k that ``ranking`` names twice."""
    for k in sorted({k for k in ranking if list(ranking).count(k) > 1}):
        yield Problem("ranking", f"names {k} twice", "once is enough")


def deciding_problems(key: str, name: str, group_by: str | None, ranking: Sequence[int]) -> Iterator[Problem]:
    """Reasons why the metric ``name``, the value of ``key``, cannot decide which evaluation of a run is the best."""
    metric, (_, k) = metric_of(name), split_name(name)
    if metric is None:
        yield unknown_metric(key, name, "any k of evaluation.ranking")
    elif metric.of_groups and group_by is None:
        rule = "is measured within groups of rows, and evaluation.group_by names none"
        yield Problem(key, rule, "add evaluation.group_by=COLUMN", name)
    elif k is not None and k not in ranking:
        rule = f"is not measured, because evaluation.ranking holds {', '.join(map(str, ranking)) or 'no k'}"
        yield Problem(key, rule, f"add {k} to evaluation.ranking", name)


def unknown_metric(key: str, name: str, which_k: str = "any k") -> Problem:
    """The problem that there is no metric ``name``, the value of ``key``. ``which_k``: the k that are allowed."""
    plain = ", ".join(kind for kind, each in METRICS.items() if not each.at_k)
    k = split_name(name)[1] or 10
    at_k = ", ".join(f"{kind}@{k}" for kind, each in METRICS.items() if each.at_k)
    return Problem(key, f"must be one of {plain}, {at_k}, with {which_k}", value=name)
