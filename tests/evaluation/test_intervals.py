"""DeLong's variance and paired test against the pairs counted one by one, on one process and on three."""

import itertools
import math
import random

import numpy as np
import pytest
import torch

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.intervals import auc_covariance, auc_interval, compare_aucs, holm, logloss_interval
from tests.ranks import on_ranks
from tests.scored import scored

NUM_RANKS = 3


def draw(size: int, step: float | None, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two models' logits, which agree in part, multiples of ``step`` if given; and labels."""
    generator = torch.Generator().manual_seed(seed)
    shared, first, second = torch.randn(3, size, generator=generator)
    labels = torch.bernoulli(torch.sigmoid(shared.double() - 1), generator=generator) > 0.5
    models = [shared + first, shared + 2 * second]
    if step is not None:
        models = [(logits / step).round() * step for logits in models]
    return models[0], models[1], labels


def slow(scores: list[torch.Tensor], labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """AUCs and their covariance from the kernel of every pair (DeLong et al. 1988, equations 2 to 6)."""
    of_positives, of_negatives = [], []
    for logits in scores:
        x, y = logits[labels].double().numpy()[:, None], logits[~labels].double().numpy()[None, :]
        kernel = (x > y) + 0.5 * (x == y)
        of_positives.append(kernel.mean(1))
        of_negatives.append(kernel.mean(0))
    v10, v01 = np.array(of_positives), np.array(of_negatives)
    covariance = np.atleast_2d(np.cov(v10)) / v10.shape[1] + np.atleast_2d(np.cov(v01)) / v01.shape[1]
    return v10.mean(1), covariance


@pytest.mark.parametrize("step", [None, 0.5, 2.0, 100.0])
@pytest.mark.parametrize("size", [20, 701])
def test_the_covariance_matches_the_structural_components(size: int, step: float | None) -> None:
    """With no, many, and nothing but equal scores."""
    first, second, labels = draw(size, step)
    aucs, covariance = auc_covariance([scored(each, labels) for each in (first, second)])
    expected_aucs, expected_covariance = slow([first, second], labels)
    assert aucs == pytest.approx(expected_aucs, rel=1e-12)
    assert np.array(covariance) == pytest.approx(expected_covariance, rel=1e-9, abs=1e-16)


def test_a_case_worked_out_by_hand() -> None:
    """Positives 3, 2; negatives 2, 1: components (1, 3/4) and (3/4, 1), so the variance is 2 (1/32 / 2) = 1/32."""
    found = auc_interval(scored(torch.tensor([3.0, 2.0, 2.0, 1.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])), 0.95)
    assert found.value == 7 / 8
    assert found.standard_error == pytest.approx(math.sqrt(1 / 32), rel=1e-14)
    assert found.low == pytest.approx(7 / 8 - 1.959963984540054 * math.sqrt(1 / 32), rel=1e-12)
    assert found.high == 1  # an AUC is no more


def test_the_paired_test_uses_that_the_rows_are_the_same() -> None:
    """Difference, interval and p-value from the slow covariance; narrower than if the models were independent."""
    first, second, labels = draw(600, 0.25)
    found = compare_aucs(scored(first, labels), second, confidence=0.9)
    (a, b), covariance = slow([first, second], labels)
    error = math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert found.difference.value == pytest.approx(a - b, rel=1e-10)
    assert found.difference.standard_error == pytest.approx(error, rel=1e-9)
    assert found.difference.high - found.difference.low == pytest.approx(2 * 1.6448536269514722 * error)
    assert found.p_value == pytest.approx(math.erfc(abs(a - b) / error / math.sqrt(2)), rel=1e-6)
    assert error < math.hypot(found.first.standard_error, found.second.standard_error)


def test_a_model_does_not_differ_from_itself() -> None:
    first, _, labels = draw(300, 0.5)
    found = compare_aucs(scored(first, labels), 2 * first, 0.95)
    assert found.difference.value == 0
    assert found.p_value == 1


def test_too_few_rows_of_a_class_leave_it_undefined() -> None:
    found = compare_aucs(scored(torch.arange(5.0), torch.arange(5) == 3), torch.arange(5.0), 0.95)
    assert math.isnan(found.difference.low)
    assert math.isnan(found.p_value)


CASES: list[tuple[int, float | None, list[int]]] = [
    (900, None, [0, 10, 700, 900]),
    (900, 0.5, [0, 0, 17, 900]),  # many ties, a rank without rows
    (60, 1000.0, [0, 10, 30, 60]),  # all scores equal
]


def measure_on_rank(runtime: Runtime) -> list[tuple[list[float], list[list[float]]]]:
    """One of three processes: its rows of every case."""
    rank, found = runtime.rank, []
    for size, step, cuts in CASES:
        rows = slice(cuts[rank], cuts[rank + 1])
        first, second, labels = (values[rows] for values in draw(size, step, seed=3))
        found.append(auc_covariance([scored(each, labels) for each in (first, second)]))
    return found


def test_three_ranks_find_what_one_does() -> None:
    """Rows split unevenly over gloo processes: the slow values, the same on every rank to the bit."""
    by_rank = on_ranks(measure_on_rank, NUM_RANKS)
    assert {repr(found) for found in by_rank} == {repr(by_rank[0])}
    for (size, step, _), (aucs, covariance) in zip(CASES, by_rank[0], strict=True):
        first, second, labels = draw(size, step, seed=3)
        expected_aucs, expected_covariance = slow([first, second], labels)
        assert aucs == pytest.approx(expected_aucs, rel=1e-12)
        assert np.array(covariance) == pytest.approx(expected_covariance, rel=1e-9, abs=1e-16)


def test_holm_rejects_what_closed_testing_rejects() -> None:
    """A hypothesis is rejected iff Bonferroni rejects every set of hypotheses that it is in (Marcus et al. 1976)."""
    draw = random.Random(0)
    for _ in range(200):
        p_values = [draw.random() ** 3 for _ in range(4)]
        closed = []
        for index in range(4):
            sets = [
                chosen
                for size in range(1, 5)
                for chosen in itertools.combinations(range(4), size)
                if index in chosen
            ]
            closed.append(min(1.0, max(len(chosen) * min(p_values[i] for i in chosen) for chosen in sets)))
        assert holm(p_values) == pytest.approx(closed)
    assert holm([]) == []


def test_the_interval_of_the_log_loss_is_the_interval_of_a_mean() -> None:
    logits, _, labels = draw(500, None)
    chances = 1 / (1 + np.exp(-logits.double().numpy()))
    losses = -np.log(np.where(labels.numpy(), chances, 1 - chances))
    found = logloss_interval(scored(logits, labels), 0.95)
    assert found.value == pytest.approx(losses.mean(), rel=1e-12)
    assert found.standard_error == pytest.approx(losses.std(ddof=1) / math.sqrt(500), rel=1e-12)
    assert found.high - found.value == pytest.approx(1.959964 * found.standard_error, rel=1e-6)
    assert math.isnan(logloss_interval(scored(logits[:0], labels[:0]), 0.95).value)
