"""Ranking metrics of groups against scikit-learn, all orders of ties, and themselves on several ranks."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from dlrm_app.config.metrics import METRICS
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.group_ranking import RANKING_METRICS, group_values, measure_groups
from dlrm_app.evaluation.grouped_auc import collect_groups
from tests.ranks import on_ranks
from tests.scored import scored

KS = (1, 2, 3, 10)


def draw(size: int, step: float | None, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, multiples of ``step`` if given, labels, and groups of 1 to some 40 rows."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size)
    labels = rng.random(size) < 1 / (1 + np.exp(1 - logits))
    if step is not None:
        logits = (logits / step).round() * step
    groups = (rng.random(size) ** 2 * size / 10).astype(np.int32)
    return tuple(torch.from_numpy(part) for part in (logits.astype(np.float32), labels, groups))


def found(
    logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor, weights: torch.Tensor | None = None
) -> dict[str, float]:
    return measure_groups(collect_groups(scored(logits, labels, weights), groups), KS)


def mean_over_groups(
    groups: torch.Tensor, labels: torch.Tensor, one: Callable[[torch.Tensor], float]
) -> float:
    """The mean of ``one`` over the groups with a click."""
    rows = [(groups == group).nonzero()[:, 0] for group in groups.unique()]
    return float(np.mean([one(own) for own in rows if labels[own].any()]))


def sklearn_ndcg(gains: torch.Tensor, logits: torch.Tensor, k: int) -> float:
    if len(gains) == 1:  # which scikit-learn refuses
        return 1.0
    return float(ndcg_score(gains[None].numpy(), logits[None].numpy(), k=k))


@pytest.mark.parametrize("step", [None, 0.5, 100.0])
def test_ndcg_equals_scikit_learns_group_by_group(step: float | None) -> None:
    """With no, many, and nothing but equal scores."""
    logits, labels, groups = draw(3000, step)
    values = found(logits, labels, groups)
    for k in KS:
        truth = mean_over_groups(
            groups, labels, lambda own, k=k: sklearn_ndcg(labels[own].double(), logits[own], k)
        )
        assert values[f"ndcg@{k}"] == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("step", [None, 0.5])
def test_weights_multiply_the_gains_of_ndcg(step: float | None) -> None:
    logits, labels, groups = draw(3000, step)
    weights = torch.from_numpy(np.random.default_rng(1).choice([0.5, 1, 2.5], 3000)).float()
    values = found(logits, labels, groups, weights)
    gains = labels * weights.double()
    for k in KS:
        truth = mean_over_groups(groups, labels, lambda own, k=k: sklearn_ndcg(gains[own], logits[own], k))
        assert values[f"ndcg@{k}"] == pytest.approx(truth, abs=1e-12)


def in_order(gains: list[float], k: int) -> dict[str, float]:
    """The metrics of one group whose rows have ``gains`` in this order; a gain of 0 is no click."""
    places = [place for place, gain in enumerate(gains, 1) if gain]
    first, most = gains[:k], sorted(gains, reverse=True)[:k]
    share = min(k, len(places)) / min(k, len(gains))
    return {
        "mrr": 1 / places[0],
        f"hit_rate@{k}": float(places[0] <= k),
        f"precision@{k}": sum(first) / sum(most) * share,
    }


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.sampled_from([1, 2, 5])), min_size=1, max_size=6
)


@settings(deadline=None, max_examples=60)
@given(ROWS, st.booleans())
def test_ties_count_by_their_mean_over_all_orders(
    rows: list[tuple[int, bool, int]], is_weighted: bool
) -> None:
    """Every order of the rows in which scores do not rise, counted once."""
    if not any(click for _, click, _ in rows):
        return
    scores, clicks, numbers = map(torch.tensor, zip(*rows, strict=True))
    weights = numbers.float() if is_weighted else None
    values = found(scores.float(), clicks, torch.zeros(len(rows), dtype=torch.int32), weights)
    gains = [float(click) * (weight if is_weighted else 1) for _, click, weight in rows]
    orders = [
        order
        for order in permutations(range(len(rows)))
        if all(rows[a][0] >= rows[b][0] for a, b in pairwise(order))
    ]
    for k in KS:
        each = [in_order([gains[row] for row in order], k) for order in orders]
        for name in each[0]:
            assert values[name] == pytest.approx(np.mean([one[name] for one in each]), abs=1e-12), name


def test_without_weights_precision_is_the_share_of_clicks() -> None:
    logits, labels, groups = draw(2000, None)
    values = found(logits, labels, groups)
    for k in KS:
        truth = mean_over_groups(
            groups,
            labels,
            lambda own, k=k: labels[own][logits[own].argsort(descending=True)][:k].double().mean().item(),
        )
        assert values[f"precision@{k}"] == pytest.approx(truth, abs=1e-12)


def test_equal_weights_change_nothing_and_rows_of_weight_zero_are_left_out() -> None:
    rows = draw(2000, 0.5)
    plain = found(*rows)
    assert found(*rows, torch.full((2000,), 3.0)) == pytest.approx(plain, abs=1e-12)
    counts = torch.arange(2000) % 3 > 0
    assert found(*rows, counts.float()) == pytest.approx(found(*(part[counts] for part in rows)), abs=1e-12)


def test_groups_of_clicks_alone_count_one_and_those_without_are_counted_apart() -> None:
    """Group 0 has clicks alone, 1 a single row, 2 no click."""
    groups = torch.tensor([0, 0, 0, 1, 2, 2], dtype=torch.int32)
    labels = torch.tensor([True, True, True, True, False, False])
    values = found(torch.tensor([1.0, 2, 2, 0, 1, 3]), labels, groups)
    assert (values["groups"], values["groups_without_click"]) == (2, 1)
    assert {name: value for name, value in values.items() if "groups" not in name and name != "gauc"} == {
        "mrr": 1,
        **{f"{name}@{k}": 1 for name in ("ndcg", "hit_rate", "precision") for k in KS},
    }


def test_many_equal_scores_have_the_closed_form() -> None:
    """One click among m rows of one score: the mean of 1/1 to 1/m, and k/m of the hits."""
    size = 100_000
    labels = torch.arange(size) == 5
    values = found(torch.zeros(size), labels, torch.zeros(size, dtype=torch.int32))
    assert values["mrr"] == pytest.approx((1 / np.arange(1, size + 1)).mean(), rel=1e-9)
    assert values["hit_rate@10"] == pytest.approx(10 / size, rel=1e-5)


def measure_share(rows: tuple[torch.Tensor, ...], runtime: Runtime) -> dict[str, float]:
    share = slice(*(part * len(rows[0]) // runtime.world_size for part in (runtime.rank, runtime.rank + 1)))
    return found(*(part[share] for part in rows))


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_any_number_of_ranks_gives_the_same(num_ranks: int, has_keys: bool, is_weighted: bool) -> None:
    logits, labels, groups = draw(5000, 0.5)
    groups = groups.long() * 12345678901234567 if has_keys else groups
    weights = (torch.arange(5000) % 4).float()
    rows = (logits, labels, groups, weights) if is_weighted else (logits, labels, groups)
    truth = found(*rows)
    for values in on_ranks(partial(measure_share, rows), num_ranks):
        assert values == pytest.approx(truth, abs=1e-12)


def test_a_split_without_groups_has_no_metrics_of_groups() -> None:
    values = found(torch.zeros(2), torch.tensor([False, False]), torch.zeros(2, dtype=torch.int32))
    assert (values["groups"], values["groups_without_click"]) == (0, 1)
    assert np.isnan(values["ndcg@10"])


def test_every_named_metric_of_groups_has_a_function() -> None:
    named = {name for name, metric in METRICS.items() if metric.of_groups}
    assert named == {"gauc", *RANKING_METRICS}
    grouped = collect_groups(scored(*draw(100, None)[:2]), draw(100, None)[2])
    assert {name.partition("@")[0] for name in group_values(grouped, [5])} == named
