"""Intervals of metrics of groups, and paired differences of two models over the same groups, by NumPy and SciPy."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.group_ranking import group_values
from dlrm_app.evaluation.group_results import GroupedScores, group_results
from dlrm_app.evaluation.grouped_auc import collect_groups
from dlrm_app.evaluation.result import GroupResult
from tests.ranks import on_ranks
from tests.scored import scored

ROWS, RANKING = 4000, (5,)


def draw() -> tuple[torch.Tensor, ...]:
    """The logits of two models, labels and groups."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=ROWS)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(1 - truth))
    first, second = (truth + rng.normal(size=ROWS) * noise for noise in (0.5, 1.0))
    groups = rng.integers(0, 500, ROWS).astype(np.int32)
    return tuple(
        torch.from_numpy(part)
        for part in (first.astype(np.float32), second.astype(np.float32), labels, groups)
    )


def compared(rows: tuple[torch.Tensor, ...], renumbered: bool = False) -> list[GroupResult]:
    """The second model's results against the first. ``renumbered``: its encoding gives the groups other ids."""
    first, second, labels, groups = rows
    others = 10_000 - groups if renumbered else groups
    scores = GroupedScores(scored(second, labels), others, RANKING)
    return group_results(scores, GroupedScores(scored(first, labels), groups, RANKING), 0.95)


def by_group(logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor, name: str) -> np.ndarray:
    return group_values(collect_groups(scored(logits, labels), groups), RANKING)[name].values.numpy()


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("name", ["ndcg@5", "mrr", "hit_rate@5", "precision@5"])
def test_a_group_is_one_draw(name: str, renumbered: bool) -> None:
    """The mean with its standard error, and the paired difference with a normal test."""
    rows = first, second, labels, groups = draw()
    found = next(result for result in compared(rows, renumbered) if result.name == name)
    values, before = by_group(second, labels, groups, name), by_group(first, labels, groups, name)
    assert found.interval.value == pytest.approx(values.mean(), rel=1e-12)
    assert found.interval.standard_error == pytest.approx(stats.sem(values), rel=1e-9)
    assert found.difference is not None
    error = stats.sem(values - before)
    change = (values - before).mean()
    assert found.difference.value == pytest.approx(change, rel=1e-9)
    assert found.difference.standard_error == pytest.approx(error, rel=1e-9)
    assert found.difference.low == pytest.approx(change - stats.norm.ppf(0.975) * error, rel=1e-9)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(change) / error), rel=1e-6)


def test_gauc_counts_groups_by_their_rows() -> None:
    """Its error is that of a weighted mean, as the spread of its bootstrap over groups says."""
    first, _, labels, groups = draw()
    auc = group_values(collect_groups(scored(first, labels), groups), RANKING)["gauc"]
    values, weights = auc.values.numpy(), auc.weights.numpy()
    scores = GroupedScores(scored(first, labels), groups, RANKING)
    found = next(result for result in group_results(scores, None, 0.95) if result.name == "gauc")
    assert found.interval.value == pytest.approx(np.average(values, weights=weights), rel=1e-12)
    assert found.difference is None
    drawn = np.random.default_rng(1).integers(0, len(values), (2000, len(values)))
    means = (values[drawn] * weights[drawn]).sum(1) / weights[drawn].sum(1)
    # 2,000 draws tell a standard deviation to 1.6%
    assert found.interval.standard_error == pytest.approx(means.std(), rel=0.07)


def test_a_model_does_not_differ_from_itself() -> None:
    first, _, labels, groups = draw()
    for result in compared((first, first, labels, groups)):
        assert result.difference is not None
        assert (result.difference.value, result.p_value) == (0, 1)


def test_scores_that_are_nan_have_no_metrics() -> None:
    first, second, labels, groups = draw()
    second[0] = torch.nan
    assert all(np.isnan(result.interval.value) for result in compared((first, second, labels, groups)))


def compared_on_rank(rows: tuple[torch.Tensor, ...], runtime: Runtime) -> list[GroupResult]:
    share = slice(*(part * ROWS // runtime.world_size for part in (runtime.rank, runtime.rank + 1)))
    return compared(tuple(part[share] for part in rows), renumbered=True)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_find_the_same(num_ranks: int) -> None:
    alone = compared(draw())
    for found in on_ranks(partial(compared_on_rank, draw()), num_ranks):
        for one, many in zip(alone, found, strict=True):
            assert one.name == many.name
            assert vars(many.interval) == pytest.approx(vars(one.interval), abs=1e-12)
            assert vars(many.difference) == pytest.approx(vars(one.difference), abs=1e-12)
