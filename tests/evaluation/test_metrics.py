"""Metrics against scikit-learn and the formulas written out, on one process and on four."""

import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.metrics import ClickMetrics
from tests.ranks import on_ranks
from tests.scored import scored

NUM_RANKS = 4


def draw_rows(size: int, step: float | None, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, multiples of ``step`` if given (so that many are equal), and labels that follow them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, generator=generator) * 2 - 1
    labels = torch.bernoulli(torch.sigmoid(logits.double() - 0.5), generator=generator).float()
    return (logits if step is None else (logits / step).round() * step), labels


def measured(
    logits: torch.Tensor, labels: torch.Tensor, split: str = "val", groups: torch.Tensor | None = None
) -> dict[str, float]:
    metrics = ClickMetrics(split, None if groups is None else "a feature")
    metrics.update(scored(logits, labels), groups)
    return metrics.compute()


def draw_groups(size: int, seed: int = 0) -> torch.Tensor:
    """Ids with a few large groups and many of one row."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(size, generator=generator) ** 4 * 200).int()


def gauc_by_loop(logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor) -> float:
    """Group by group with scikit-learn."""
    weights, aucs = [], []
    for group in groups.unique():
        own = groups == group
        if 0 < labels[own].sum() < own.sum():
            weights.append(int(own.sum()))
            aucs.append(roc_auc_score(labels[own].numpy(), logits[own].numpy()))
    return float(np.average(aucs, weights=weights))


def expected(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The same from scikit-learn and from probabilities in float64."""
    chances = 1 / (1 + np.exp(-logits.double().numpy()))
    rate = labels.double().mean().item()
    loss = log_loss(labels.numpy(), chances)
    return {
        "auc": roc_auc_score(labels.numpy(), logits.numpy()),
        "pr_auc": average_precision_score(labels.numpy(), logits.numpy()),
        "logloss": loss,
        "ne": loss / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)),
        "calibration": chances.mean() / rate,
        "accuracy": accuracy_score(labels.numpy(), logits.numpy() >= 0),
        "num_samples": len(labels),
        "positives": int(labels.sum()),
    }


@pytest.mark.parametrize("step", [None, 0.25, 3.0, 100.0])
@pytest.mark.parametrize("size", [100, 10_001])
def test_metrics_equal_scikit_learns(size: int, step: float | None) -> None:
    """With no, many, and nothing but equal scores."""
    rows = draw_rows(size, step)
    assert measured(*rows) == pytest.approx(expected(*rows), rel=1e-12)


@pytest.mark.parametrize("step", [None, 0.25, 3.0])
def test_grouped_auc_equals_a_loop_over_the_groups(step: float | None) -> None:
    """With ties inside groups, groups of one class and of one row, and both zeros."""
    logits, labels = draw_rows(5000, step)
    logits[logits == 0] *= torch.where(torch.arange(int((logits == 0).sum())) % 2 == 0, 1.0, -1.0)
    groups = draw_groups(5000)
    found = measured(logits, labels, groups=groups)
    assert found["gauc"] == pytest.approx(gauc_by_loop(logits, labels, groups), rel=1e-12)
    plain = measured(logits, labels)
    assert {name: found[name] for name in plain} == plain
    one_group = measured(logits, labels, groups=torch.full((5000,), 2**31 - 1))
    assert one_group["gauc"] == pytest.approx(found["auc"], rel=1e-15)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    """Counted pair by pair, a tie for half."""
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    pairs = [(p > n) + (p == n) / 2 for p in positives for n in negatives]
    logits, labels = torch.tensor(rows, dtype=torch.float32).unbind(1)
    found = measured(logits, labels)["auc"]
    assert found == sum(pairs) / len(pairs) if pairs else math.isnan(found)


def test_large_logits_neither_saturate_nor_overflow() -> None:
    """Probabilities in float32 would all be 1 here; the order and the loss are those of the logits."""
    logits = torch.tensor([1000.0, 1001.0, 1002.0, -1000.0, 40.0])
    found = measured(logits, torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]))
    assert found["auc"] == 5 / 6
    assert found["logloss"] == pytest.approx(1000 / 5)
    assert measured(torch.tensor([-50.0, 50.0]), torch.tensor([0.0, 1.0]))["logloss"] == pytest.approx(
        math.exp(-50), rel=1e-12
    )


def test_batches_add_up() -> None:
    """In any cut, empty batches included; a reset forgets them; computing twice changes nothing."""
    logits, labels = draw_rows(5000, 0.5)
    metrics = ClickMetrics("val")
    for _ in range(2):
        for start, stop in [(0, 0), (0, 1), (1, 4096), (4096, 4096), (4096, 5000)]:
            metrics.update(scored(logits[start:stop], labels[start:stop]))
        assert metrics.compute() == metrics.compute() == pytest.approx(measured(logits, labels), rel=1e-14)
        metrics.reset()
    assert metrics.logits == []


def test_rows_are_copied() -> None:
    """What a caller does with its tensors afterwards does not matter."""
    logits, labels = draw_rows(100, None)
    metrics, before = ClickMetrics("val"), measured(logits, labels)
    metrics.update(scored(logits, labels))
    logits.zero_()
    labels.zero_()
    assert metrics.compute() == before


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ([0.5, 1.0], [1.0, 1.0], "of its 2 rows 2 are positive, and 0 logits are nan"),
        ([], [], "of its 0 rows 0 are positive"),
        (
            [0.5, math.nan],
            [0.0, 1.0],
            "metrics of test are undefined (nan): of its 2 rows 1 are positive, and 1 logits",
        ),
    ],
)
def test_undefined_metrics_are_nan_with_a_warning(
    logits: list[float], labels: list[float], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One class, no rows, or a model that gives no numbers: the split is named, nothing crashes."""
    with caplog.at_level(logging.WARNING):
        found = measured(torch.tensor(logits), torch.tensor(labels), "test")
    assert math.isnan(found["auc"])
    assert math.isnan(found["ne"])
    assert found["num_samples"] == len(labels)
    assert math.isnan(found["logloss"]) == (labels != [1.0, 1.0])
    assert message in caplog.text


CASES: list[tuple[int, float | None, list[int]]] = [
    (3001, None, [0, 10, 1000, 2900, 3001]),
    (3001, 0.5, [0, 0, 17, 2900, 3001]),  # many ties, a rank without rows
    (500, 1000.0, [0, 100, 200, 300, 500]),  # all scores equal
    (3, None, [0, 1, 1, 2, 3]),
]
"""(rows, step of the scores, where the ranks' rows begin and end)."""


def measure_on_rank(runtime: Runtime) -> list[dict[str, float]]:
    """One of four processes: its rows of every case, then one class only, then no rows."""
    rank, found = runtime.rank, []
    for size, step, cuts in CASES:
        logits, labels = draw_rows(size, step, seed=7)
        rows = slice(cuts[rank], cuts[rank + 1])
        groups = draw_groups(size, seed=7)[rows]
        found.append(measured(logits[rows], labels[rows], groups=groups))
    found.append(measured(torch.ones(rank), torch.ones(rank)))
    found.append(measured(torch.empty(0), torch.empty(0)))
    return found


def test_four_ranks_measure_the_same_as_one() -> None:
    """Rows split unevenly over gloo processes: scikit-learn's values, the same on every rank to the bit."""
    by_rank = on_ranks(measure_on_rank, NUM_RANKS)
    assert {str(found) for found in by_rank} == {str(by_rank[0])}
    *measured_cases, one_class, no_rows = by_rank[0]
    for (size, step, _), found in zip(CASES, measured_cases, strict=True):
        rows = draw_rows(size, step, seed=7)
        gauc = gauc_by_loop(*rows, draw_groups(size, seed=7)) if size > 3 else math.nan
        truth = {**expected(*rows), "gauc": gauc}
        assert {name: found[name] for name in truth} == pytest.approx(truth, rel=1e-12, nan_ok=True)
    assert math.isnan(one_class["auc"])
    assert one_class["positives"] == 6
    assert no_rows["num_samples"] == 0
