"""Metrics, curves and intervals of rows with weights: scikit-learn's, written-out formulas, and repeated rows."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.evaluation.intervals import auc_covariance, auc_interval, compare_aucs, logloss_interval
from dlrm_app.evaluation.metrics import ClickMetrics, entropy
from tests.evaluation.test_metrics import draw_groups, draw_rows
from tests.ranks import on_ranks
from tests.scored import scored

NUM_RANKS = 3
STEPS = [None, 0.25, 3.0]
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw_weighted(size: int, step: float | None, seed: int = 3) -> Rows:
    """Logits, labels, and weights from 0.01 to 100, some of them 0."""
    logits, labels = draw_rows(size, step, seed)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.exp(torch.randn(size, generator=generator) * 2)
    weights[torch.rand(size, generator=generator) < 0.1] = 0.0
    return logits, labels, weights


def measured(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> ClickMetrics:
    metrics = ClickMetrics("val", "a feature")
    metrics.update(scored(logits, labels, weights), draw_groups(len(logits)))
    return metrics


def expected(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
    """By scikit-learn's sample_weight."""
    scores, truth, w = logits.double().numpy(), labels.numpy(), weights.double().numpy()
    chances = 1 / (1 + np.exp(-scores))
    loss, rate = log_loss(truth, chances, sample_weight=w), np.average(truth, weights=w)
    groups, sums, aucs = draw_groups(len(scores)).numpy(), [], []
    for group in np.unique(groups):
        own = (groups == group) & (w > 0)
        if len(np.unique(truth[own])) == 2:
            sums.append(w[own].sum())
            aucs.append(roc_auc_score(truth[own], scores[own], sample_weight=w[own]))
    return {
        "auc": roc_auc_score(truth, scores, sample_weight=w),
        "auc_unweighted": roc_auc_score(truth, scores),
        "pr_auc": average_precision_score(truth, scores, sample_weight=w),
        "gauc": float(np.average(aucs, weights=sums)),
        "logloss": loss,
        "ne": loss / entropy(rate),
        "calibration": np.average(chances, weights=w) / rate,
        "accuracy": accuracy_score(truth, scores >= 0, sample_weight=w),
        "num_samples": len(truth),
        "positives": int(truth.sum()),
        "weight": w.sum(),
        "effective_positives": w[truth > 0].sum() ** 2 / (w[truth > 0] ** 2).sum(),
        "effective_negatives": w[truth < 1].sum() ** 2 / (w[truth < 1] ** 2).sum(),
    }


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [100, 10_001])
def test_weighted_metrics_equal_scikit_learns(size: int, step: float | None) -> None:
    rows = draw_weighted(size, step)
    found, truth = measured(*rows).compute(), expected(*rows)
    assert {name: found[name] for name in truth} == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("step", STEPS)
def test_whole_weights_equal_repeated_rows(step: float | None) -> None:
    """All metrics but the counts, the unweighted AUC and what rests on the number of independent rows."""
    logits, labels = draw_rows(2000, step)
    weights = torch.randint(0, 4, (2000,), generator=torch.Generator().manual_seed(1))
    metrics = ClickMetrics("val")
    metrics.update(scored(logits, labels, weights.float()))
    repeated = ClickMetrics("val")
    repeated.update(scored(logits.repeat_interleave(weights), labels.repeat_interleave(weights)))
    found, plain = metrics.compute(), repeated.compute()
    counts = ("num_samples", "positives")
    plain = {name: value for name, value in plain.items() if name not in counts}
    assert {name: found[name] for name in plain} == pytest.approx(plain, rel=1e-12)
    assert found["weight"] == repeated.compute()["num_samples"]


@pytest.mark.parametrize("step", STEPS)
def test_weights_of_one_change_no_metric(step: float | None) -> None:
    logits, labels = draw_rows(3000, step)
    ones, without = measured(logits, labels, torch.ones(3000)), measured(logits, labels, None)
    found, plain = ones.compute(), without.compute()
    assert {name: found[name] for name in plain} == pytest.approx(plain, rel=1e-13)
    assert ones.ne_error == pytest.approx(without.ne_error, rel=1e-12)
    effective = found["effective_positives"], found["effective_negatives"]
    assert effective == (plain["positives"], 3000 - plain["positives"])


@pytest.mark.parametrize("factor", [0.001, 7.0, 1e20])
def test_a_common_factor_of_weights_changes_nothing(factor: float) -> None:
    logits, labels, weights = draw_weighted(3000, 0.25)
    first, second = measured(logits, labels, weights), measured(logits, labels, weights * factor)
    found, scaled = first.compute(), second.compute()
    assert scaled.pop("weight") == pytest.approx(found.pop("weight") * factor, rel=1e-6)
    assert scaled == pytest.approx(found, rel=1e-5)
    assert second.ne_error == pytest.approx(first.ne_error, rel=1e-5)


@pytest.mark.parametrize("zero", ["all", "positives", "negatives"])
def test_metrics_of_no_weight_are_nan_with_a_warning(zero: str, caplog: pytest.LogCaptureFixture) -> None:
    logits, labels = draw_rows(100, None)
    chosen = {"all": labels >= 0, "positives": labels > 0, "negatives": labels < 1}[zero]
    found = measured(logits, labels, torch.where(chosen, 0.0, 2.0)).compute()
    assert math.isnan(found["auc"])
    assert not math.isnan(found["auc_unweighted"])
    assert math.isnan(found["logloss"]) == (zero == "all")
    assert "are undefined (nan)" in caplog.text


def slow(
    scores: list[torch.Tensor], labels: torch.Tensor, weights: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted AUCs and their covariance, pair by pair, from each row's influence on them."""
    w = weights.double().numpy()
    wp, wn = w[labels.numpy()], w[~labels.numpy()]
    influences, aucs = [], []
    for logits in scores:
        x, y = logits[labels].double().numpy()[:, None], logits[~labels].double().numpy()[None, :]
        kernel = (x > y) + 0.5 * (x == y)
        auc = wp @ kernel @ wn / wp.sum() / wn.sum()
        of_positives = wp * (kernel @ wn / wn.sum() - auc) / wp.sum()
        of_negatives = wn * (wp @ kernel / wp.sum() - auc) / wn.sum()
        scale = [np.sqrt((each > 0).sum() / ((each > 0).sum() - 1)) for each in (wp, wn)]
        influences.append(np.concatenate([scale[0] * of_positives, scale[1] * of_negatives]))
        aucs.append(auc)
    return np.array(aucs), np.array(influences) @ np.array(influences).T


@pytest.mark.parametrize("step", STEPS)
def test_the_weighted_covariance_matches_influences(step: float | None) -> None:
    first, labels, weights = draw_weighted(701, step)
    second = first + draw_rows(701, step, seed=9)[0]
    aucs, covariance = auc_covariance([scored(each, labels, weights) for each in (first, second)])
    expected_aucs, expected_covariance = slow([first, second], labels > 0.5, weights)
    assert aucs == pytest.approx(expected_aucs, rel=1e-12)
    assert np.array(covariance) == pytest.approx(expected_covariance, rel=1e-9)


def test_weights_of_one_give_delongs_intervals() -> None:
    first, labels = draw_rows(900, 0.25)
    second, twos = first + draw_rows(900, 0.25, seed=5)[0], torch.full((900,), 2.0)
    weighted, unweighted = scored(first, labels, twos), scored(first, labels)
    found, plain = compare_aucs(weighted, second, 0.95), compare_aucs(unweighted, second, 0.95)
    for name in ("value", "standard_error", "low", "high"):
        for part in ("first", "second", "difference"):
            ours, theirs = getattr(getattr(found, part), name), getattr(getattr(plain, part), name)
            assert ours == pytest.approx(theirs, rel=1e-9)
    assert found.p_value == pytest.approx(plain.p_value, rel=1e-6)
    ours, theirs = logloss_interval(weighted, 0.95), logloss_interval(unweighted, 0.95)
    assert (ours.value, ours.standard_error) == pytest.approx(
        (theirs.value, theirs.standard_error), rel=1e-12
    )


def test_weighted_intervals_cover_the_truth() -> None:
    """Of 300 samples of 400 rows, 95% intervals hold the AUC and log loss of a million rows in about 95%."""
    logits, labels = draw_rows(1_000_000, None)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(0, 4, (1_000_000,), generator=generator).float() + labels
    whole = measured(logits, labels, weights).compute()
    held = {"auc": 0, "logloss": 0}
    for begin in range(0, 300 * 400, 400):
        rows = slice(begin, begin + 400)
        some = scored(logits[rows], labels[rows], weights[rows])
        intervals = {"auc": auc_interval(some, 0.95), "logloss": logloss_interval(some, 0.95)}
        for name, interval in intervals.items():
            held[name] += interval.low <= whole[name] <= interval.high
    for count in held.values():
        assert 0.92 * 300 <= count <= 0.985 * 300


def test_the_error_of_ne_matches_its_influences() -> None:
    logits, labels, weights = draw_weighted(2000, None)
    metrics = measured(logits, labels, weights)
    metrics.compute()
    w, y, z = (each.double().numpy() for each in (weights, labels, logits))
    rate = np.average(y, weights=w)
    losses = np.logaddexp(0, np.where(y > 0, -z, z))
    d = losses + np.where(y > 0, np.log(rate), np.log(1 - rate))
    error = np.sqrt((w**2 * (d - np.average(d, weights=w)) ** 2).sum()) / w.sum() / entropy(rate)
    assert metrics.ne_error == pytest.approx(error, rel=1e-10)


def test_curves_of_whole_weights_match_repeated_rows() -> None:
    logits, labels = draw_rows(5000, 0.25)
    weights = torch.randint(0, 4, (5000,), generator=torch.Generator().manual_seed(1))
    found = measure_curves(scored(logits, labels, weights.float()))
    plain = measure_curves(scored(logits.repeat_interleave(weights), labels.repeat_interleave(weights)))
    assert found is not None
    assert plain is not None
    assert found.pop("num_samples") == int((weights > 0).sum())
    assert plain.pop("num_samples") == int(weights.sum())
    assert str(found["roc"]) == str(plain["roc"])
    for name, values in plain["reliability"].items():
        assert found["reliability"][name] == pytest.approx(values, rel=1e-12)


CUTS = [0, 10, 1000, 3001]


def measure_on_rank(runtime: Runtime) -> list[object]:
    rows = slice(CUTS[runtime.rank], CUTS[runtime.rank + 1])
    found: list[object] = []
    for step in STEPS:
        logits, labels, weights = (each[rows] for each in draw_weighted(3001, step))
        metrics = ClickMetrics("val", "a feature")
        keys = draw_groups(3001)[rows].long() * 10**12
        some = scored(logits, labels, weights)
        metrics.update(some, keys)
        found += [metrics.compute(), metrics.ne_error]
        found.append(auc_interval(some, 0.95))
        found.append(logloss_interval(some, 0.95))
        found.append(measure_curves(some))
    return found


def test_three_ranks_measure_weighted_rows_as_one_does() -> None:
    by_rank = on_ranks(measure_on_rank, NUM_RANKS)
    assert {str(found) for found in by_rank} == {str(by_rank[0])}
    for number, step in enumerate(STEPS):
        logits, labels, weights = draw_weighted(3001, step)
        values, ne_error, auc, loss, curves = by_rank[0][5 * number : 5 * number + 5]
        metrics, rows = measured(logits, labels, weights), scored(logits, labels, weights)
        truth = expected(logits, labels, weights)
        assert {name: values[name] for name in truth} == pytest.approx(truth, rel=1e-10)
        assert metrics.compute() == pytest.approx(values, rel=1e-12)
        assert ne_error == pytest.approx(metrics.ne_error, rel=1e-12)
        alone = auc_interval(rows, 0.95), logloss_interval(rows, 0.95)
        assert vars(auc) == pytest.approx(vars(alone[0]), rel=1e-9)
        assert vars(loss) == pytest.approx(vars(alone[1]), rel=1e-9)
        expected_curves = measure_curves(rows)
        assert expected_curves is not None
        assert curves["num_samples"] == expected_curves["num_samples"]
        for name, points in expected_curves["reliability"].items():
            assert curves["reliability"][name] == pytest.approx(points, rel=1e-12)
