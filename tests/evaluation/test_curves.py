"""ROC curve and reliability diagram against scikit-learn and against counting."""

from typing import Any

import pytest
import torch
from sklearn.metrics import auc, roc_auc_score, roc_curve

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.curves import NUM_RELIABILITY_BINS, NUM_ROC_POINTS, measure_curves
from tests.ranks import on_ranks
from tests.scored import scored


def draw_rows(size: int, scale: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, generator=generator) * scale - 1
    return logits, torch.rand(size, generator=generator) < logits.sigmoid()


def curves_of(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
    curves = measure_curves(scored(logits, labels))
    assert curves is not None
    return curves


@pytest.mark.parametrize(("size", "scale"), [(10, 1.0), (5000, 1e-4), (5000, 1.5), (50_000, 8.0)])
def test_every_roc_point_lies_on_scikit_learns_curve(size: int, scale: float) -> None:
    """For any spread of scores: the few points kept have nearly the area of all, and thresholds give their points."""
    logits, labels = draw_rows(size, scale)
    roc = curves_of(logits, labels)["roc"]
    false_rate, true_rate, _ = roc_curve(labels.numpy(), logits.numpy(), drop_intermediate=False)
    points = list(zip(roc["false_positive_rate"], roc["true_positive_rate"], strict=True))
    assert set(points) <= set(zip(false_rate.tolist(), true_rate.tolist(), strict=True))
    assert (points[0], points[-1]) == ((0, 0), (1, 1))
    assert points == sorted(points)
    assert len(points) <= NUM_ROC_POINTS + 1
    area = auc(roc["false_positive_rate"], roc["true_positive_rate"])
    assert area == pytest.approx(roc_auc_score(labels.numpy(), logits.numpy()), abs=1e-3)
    chances, positive = logits.double().sigmoid().numpy(), labels.numpy()
    if scale == 1.5:  # more spread, and probabilities are 1 to the last bit
        for point, threshold in list(zip(points, roc["threshold"], strict=True))[1:-1]:
            called = chances >= threshold
            assert (called[~positive].mean(), called[positive].mean()) == pytest.approx(point)


def test_reliability_bins_hold_equal_shares_and_the_right_rows() -> None:
    """Counted again from each bin's range."""
    logits, labels = draw_rows(20_000, 1.5)
    bins = curves_of(logits, labels)["reliability"]
    chances, positive = logits.double().sigmoid().numpy(), labels.numpy()
    assert (sum(bins["count"]), sum(bins["positives"])) == (20_000, positive.sum())
    assert bins["count"] == pytest.approx([1000] * NUM_RELIABILITY_BINS, abs=10)
    assert bins["low"][1:] == bins["high"][:-1]
    for at in range(1, NUM_RELIABILITY_BINS - 1):
        inside = (chances >= bins["low"][at]) & (chances < bins["high"][at])
        assert bins["count"][at] == inside.sum()
        assert bins["positives"][at] == positive[inside].sum()
        assert bins["mean_prediction"][at] == pytest.approx(chances[inside].mean(), rel=1e-12)


@pytest.mark.parametrize("label", [False, True])
def test_one_class_has_no_roc_curve(label: bool) -> None:
    curves = curves_of(draw_rows(100, 1.0)[0], torch.full((100,), label))
    assert curves["roc"] is None
    assert sum(curves["reliability"]["positives"]) == 100 * label


def test_equal_scores_make_one_bin() -> None:
    """A model that says the same for every row."""
    curves = curves_of(torch.full((50,), 0.25), torch.arange(50) < 20)
    assert (curves["reliability"]["count"], curves["reliability"]["positives"]) == ([50], [20])
    assert curves["roc"]["true_positive_rate"] == [0, 1]


def test_curves_leave_out_nan_and_keep_infinity() -> None:
    logits = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1e9])
    curves = curves_of(logits, torch.tensor([True, True, False, False, True]))
    assert curves["num_samples"] == 4
    assert auc(curves["roc"]["false_positive_rate"], curves["roc"]["true_positive_rate"]) == 1


def test_no_rows_have_no_curves() -> None:
    assert measure_curves(scored(torch.empty(0), torch.empty(0))) is None
    assert measure_curves(scored(torch.tensor([float("nan")]), torch.tensor([1.0]))) is None


def curves_of_part(runtime: Runtime) -> dict[str, Any]:
    """The first of several ranks has few rows, the last one the rest."""
    logits, labels = draw_rows(5001, 1.5, seed=3)
    cuts = [0, *[700] * (runtime.world_size - 1), len(logits)]
    rows = slice(cuts[runtime.rank], cuts[runtime.rank + 1])
    return curves_of(logits[rows], labels[rows])


def test_two_ranks_find_the_curves_of_one() -> None:
    first, second = on_ranks(curves_of_part, 2)
    assert first == second
    alone = curves_of_part(Runtime(0, 0, 1, 1, "cpu", num_threads=1))
    means, expected_means = (each["reliability"].pop("mean_prediction") for each in (first, alone))
    assert means == pytest.approx(expected_means, rel=1e-12)
    assert first == alone
