"""Confidence intervals of AUCs, and paired tests of models on the same rows: DeLong's method, Holm's adjustment.

Of rows with weights, a row and its weight are one independent draw: a weight of 3 is one row that counts three times,
not three rows. With equal weights all results are those without.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from dlrm_app.distributed.collectives import all_to_all, num_ranks, sum_in_rank_order
from dlrm_app.evaluation.grouped_auc import GroupValues
from dlrm_app.evaluation.ranking import CHUNK, Ranking, cut, doubled_wins, find_splitters, rank_scores
from dlrm_app.evaluation.result import Comparison, GroupResult, Interval
from dlrm_app.evaluation.scored_rows import ScoredRows


def auc_interval(rows: ScoredRows, confidence: float) -> Interval:
    """The AUC of rows, and its interval by the normal approximation.

    With a process group every rank passes its own rows; all get the same result. NaN if a class has fewer than two
    rows.
    """
    aucs, covariance = auc_covariance([rows])
    return interval_of(aucs[0], covariance[0][0], confidence, (0.0, 1.0))


def compare_aucs(first: ScoredRows, second: torch.Tensor, confidence: float) -> Comparison:
    """Compares the logits of rows with another model's, ``second`` [n], of the same rows in the same order.

    The p-value tests for no difference (DeLong et al. 1988); it is 1 if both rank all rows in the same order.
    """
    (a, b), cov = auc_covariance([first, replace(first, logits=second)])
    difference = a - b
    interval = interval_of(difference, cov[0][0] + cov[1][1] - 2 * cov[0][1], confidence, (-1.0, 1.0))
    return Comparison(
        interval_of(a, cov[0][0], confidence, (0.0, 1.0)),
        interval_of(b, cov[1][1], confidence, (0.0, 1.0)),
        interval,
        _p_value(difference, interval.standard_error),
    )


def group_intervals(groups: Mapping[str, GroupValues], confidence: float) -> list[GroupResult]:
    """The mean of each metric over the groups of all ranks, and its interval: a group is one independent draw.

    Every rank passes its own groups; all get the same result. NaN without groups.
    """
    return [
        GroupResult(name, mean_interval([each.values], [each.weights], confidence, (0.0, 1.0)))
        for name, each in groups.items()
    ]


def compare_groups(
    groups: Mapping[str, GroupValues],
    own: Mapping[str, GroupValues],
    first: Mapping[str, GroupValues],
    confidence: float,
) -> list[GroupResult]:
    """``group_intervals`` of ``groups``, and the differences of ``own`` minus ``first``: values of the same groups in
    the same order.
    """
    compared = []
    for result in group_intervals(groups, confidence):
        then, now = first[result.name], own[result.name]
        changes = [now.values - then.values]
        difference = mean_interval(changes, [then.weights], confidence, (-1.0, 1.0))
        p_value = _p_value(difference.value, difference.standard_error)
        compared.append(replace(result, difference=difference, p_value=p_value))
    return compared


def logloss_interval(rows: ScoredRows, confidence: float) -> Interval:
    """The log loss of rows in nats, and its interval by the normal approximation.

    With a process group every rank passes its own rows; all get the same result. NaN without rows.
    """
    losses = [
        binary_cross_entropy_with_logits(some.double(), truth.double(), reduction="none")
        for some, truth in zip(torch.split(rows.logits, CHUNK), torch.split(rows.labels, CHUNK), strict=True)
    ]
    if rows.is_weighted:
        return mean_interval(losses, [part.double() for part in torch.split(rows.weights, CHUNK)], confidence)
    sums = torch.stack(
        [rows.logits.new_zeros((), dtype=torch.float64), *(each.sum() for each in losses)]
    ).sum()
    num_rows, total = sum_in_rank_order(torch.stack([sums.new_tensor(len(rows)), sums])).tolist()
    mean = total / num_rows if num_rows else math.nan
    squares = torch.stack([torch.zeros_like(sums), *((each - mean).square().sum() for each in losses)]).sum()
    variance = float(sum_in_rank_order(squares)) / (num_rows - 1) / num_rows if num_rows > 1 else math.nan
    return interval_of(mean, variance, confidence, (0.0, math.inf))


def mean_interval(
    values: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    confidence: float,
    bounds: tuple[float, float] = (0.0, math.inf),
) -> Interval:
    """The mean of ``values`` (parts [n]) by their ``weights``, and its interval, which lies within ``bounds``."""
    zeros = values[0].new_zeros(3)
    parts = list(zip(values, weights, strict=True))
    terms = [torch.stack([w.sum(), (w * each).sum(), (w > 0).double().sum()]) for each, w in parts]
    total, weighted, rows = sum_in_rank_order(torch.stack([zeros, *terms]).sum(0)).tolist()
    mean = weighted / total if total else math.nan
    spreads = [zeros[0], *((w * (each - mean)).square().sum() for each, w in parts)]
    spread = float(sum_in_rank_order(torch.stack(spreads).sum()))
    variance = spread / total**2 * rows / (rows - 1) if rows > 1 else math.nan
    return interval_of(mean, variance, confidence, bounds)


def _p_value(difference: float, standard_error: float) -> float:
    if standard_error == 0:
        return 1.0 if difference == 0 else 0.0
    return math.erfc(abs(difference) / standard_error / math.sqrt(2))


def interval_of(value: float, variance: float, confidence: float, bounds: tuple[float, float]) -> Interval:
    """``value`` with its interval by the normal approximation, cut at ``bounds``."""
    # rounding can make the variance negative if two models are the same
    error = math.nan if math.isnan(variance) else math.sqrt(max(0.0, variance))
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    if math.isnan(reach):
        return Interval(value, error, math.nan, math.nan)
    return Interval(value, error, max(bounds[0], value - reach), min(bounds[1], value + reach))


def auc_covariance(models: Sequence[ScoredRows]) -> tuple[list[float], list[list[float]]]:
    """(AUCs [K], their covariance [K, K]) of the same rows with the logits of K models.

    Uses the structural components of DeLong et al. 1988, by ranks as in Sun & Xu 2014, "Fast implementation of
    DeLong's algorithm", so it takes the time of a sort. Ties count half. All nan if a class has fewer than two rows.

    If rows have weights, a row's component counts by its weight, and its square by the square of that: the variance of
    a ratio of sums over independent rows, by their influence on it (Huber's sandwich).
    """
    if models[0].is_weighted:
        return _weighted_covariance(models)
    labels = models[0].labels
    counts = torch.stack([labels.sum(), (~labels).sum()])
    num_positives, num_negatives = sum_in_rank_order(counts).tolist()
    if min(num_positives, num_negatives) < 2:
        return [math.nan] * len(models), [[math.nan] * len(models) for _ in models]
    placements = torch.stack([*map(doubled_placements, models)])  # [K, n]
    pairs = num_positives * num_negatives
    aucs = [wins / (2 * pairs) for wins in sum_in_rank_order(placements[:, labels].sum(1)).tolist()]
    # a negative's component is 1 minus its share of positives below, which has the same covariance
    of_positives = _covariance(placements[:, labels], 2 * num_negatives, num_positives)
    of_negatives = _covariance(placements[:, ~labels], 2 * num_positives, num_negatives)
    covariance = of_positives / num_positives + of_negatives / num_negatives
    return aucs, covariance.tolist()


def _weighted_covariance(models: Sequence[ScoredRows]) -> tuple[list[float], list[list[float]]]:
    labels, weights = models[0].labels, models[0].weights.double()
    counts = torch.stack([((weights > 0) & labels).sum(), ((weights > 0) & ~labels).sum()])
    numbers = sum_in_rank_order(counts).tolist()
    if min(numbers) < 2:
        return [math.nan] * len(models), [[math.nan] * len(models) for _ in models]
    totals = sum_in_rank_order(torch.stack([weights[labels].sum(), weights[~labels].sum()])).tolist()
    placements = torch.stack([*map(doubled_placements, models)])
    covariance, aucs = weights.new_zeros(len(models), len(models)), [math.nan] * len(models)
    # the positives come last: their mean component is the AUC
    for number, chosen in enumerate((~labels, labels)):
        its_weights = weights[chosen]
        own, others, num_rows = totals[1 - number], totals[number], numbers[1 - number]
        components = placements[:, chosen] / (2 * others)
        means = sum_in_rank_order((components * its_weights).sum(1)) / own
        centered = (components - means[:, None]) * its_weights
        spread = sum_in_rank_order(centered @ centered.T) / own**2
        covariance, aucs = covariance + spread * num_rows / (num_rows - 1), means.tolist()
    return aucs, covariance.tolist()


def _covariance(placements: torch.Tensor, scale: int, num_rows: int) -> torch.Tensor:
    """The sample covariance, [K, K] float64, of ``placements`` [K, m] / ``scale`` over all ranks' ``num_rows`` rows."""
    means = sum_in_rank_order(placements.sum(1)).double() / num_rows
    products = torch.zeros(len(placements), len(placements), dtype=torch.float64, device=placements.device)
    for some in torch.split(placements, CHUNK, dim=1):
        centered = (some.double() - means[:, None]) / scale
        products += centered @ centered.T
    return sum_in_rank_order(products) / (num_rows - 1)


def doubled_placements(rows: ScoredRows) -> torch.Tensor:
    """Counts for each row, int64 [n]: 2 for every row of the other class, on any rank, that scores lower, and 1 for a
    tie; if rows have weights, float64: these weights in place of 1.
    """
    ranking, logits = rank_scores(rows), rows.logits
    splitters = find_splitters(logits) if num_ranks() > 1 else logits.new_empty(0)
    kind = torch.float64 if rows.is_weighted else torch.int64
    placements = torch.empty(logits.shape, dtype=kind, device=logits.device)
    for chosen, is_positive in ((rows.labels, True), (~rows.labels, False)):
        scores, order = logits[chosen].sort()
        unsorted = torch.empty_like(order, dtype=kind)
        unsorted[order] = _ask_owners(scores, splitters, ranking, is_positive)
        placements[chosen] = unsorted
    return placements


def _ask_owners(
    scores: torch.Tensor, splitters: torch.Tensor, ranking: Ranking, is_positive: bool
) -> torch.Tensor:
    """The doubled placements of ``scores`` (sorted, of one class) among all ranks' scores of the other class."""
    others, below, running = ranking.positives, ranking.below[0], ranking.running_positives
    if is_positive:
        others, below, running = ranking.negatives, ranking.below[1], ranking.running_negatives
    asked, sizes = scores, None
    if num_ranks() > 1:
        asked, sizes = all_to_all(scores, cut(scores, splitters))
    kind = torch.int64 if running is None else torch.float64
    placements = torch.empty(asked.shape, dtype=kind, device=scores.device)
    for start in range(0, asked.numel(), CHUNK):
        placements[start : start + CHUNK] = doubled_wins(others, asked[start : start + CHUNK], running)
    placements += 2 * below
    return placements if sizes is None else all_to_all(placements, sizes)[0]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values of several tests so that the chance of any false positive is kept (Holm 1979, step-down)."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
