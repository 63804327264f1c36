"""How much worse metrics become: intervals by numerical derivatives of scikit-learn's metrics, and by NumPy and SciPy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from dlrm_app.config.metrics import METRICS
from dlrm_app.evaluation.group_ranking import group_values
from dlrm_app.evaluation.grouped_auc import collect_groups
from dlrm_app.evaluation.metric_fall import FALLS, MetricFall, precision_influences
from dlrm_app.evaluation.result import Interval
from tests.scored import scored

ROWS = 120
Sklearn = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
METRIC: dict[str, tuple[int, Sklearn]] = {
    "auc": (1, lambda labels, logits, weights: roc_auc_score(labels, logits, sample_weight=weights)),
    "pr_auc": (
        1,
        lambda labels, logits, weights: average_precision_score(labels, logits, sample_weight=weights),
    ),
    "logloss": (
        -1,
        lambda labels, logits, weights: log_loss(labels, 1 / (1 + np.exp(-logits)), sample_weight=weights),
    ),
}


def draw(is_weighted: bool) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray]:
    """Labels, logits with ties, those of two worse models, and weights."""
    rng = np.random.default_rng(0)
    truth = (rng.normal(size=ROWS) * 8).round() / 8
    labels = rng.random(ROWS) < 1 / (1 + np.exp(1 - truth))
    others = [truth + (rng.normal(size=ROWS) * 8).round() / 8 for _ in range(2)]
    weights = rng.choice([0.5, 1, 3], ROWS) if is_weighted else np.ones(ROWS)
    return labels, truth, others, weights


def fall(name: str, is_weighted: bool, keys: torch.Tensor | None = None) -> Interval:
    labels, logits, others, weights = draw(is_weighted)
    rows = scored(
        torch.from_numpy(logits).float(),
        torch.from_numpy(labels),
        torch.from_numpy(weights).float() if is_weighted else None,
    )
    return MetricFall(name, keys).between(rows, [torch.from_numpy(each).float() for each in others], 0.95)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_weighted"), [("auc", True), ("pr_auc", False), ("logloss", True)])
def test_the_error_is_that_of_the_influence_of_each_row(name: str, is_weighted: bool) -> None:
    """A row's influence is the derivative of scikit-learn's metric by the row's weight."""
    labels, logits, others, weights = draw(is_weighted)
    sign, metric = METRIC[name]

    def change(weights: np.ndarray) -> float:
        mean = np.mean([metric(labels, each, weights) for each in others])
        return sign * float(metric(labels, logits, weights) - mean)

    step = 1e-5
    moves = step * np.eye(ROWS)
    influence = np.array([change(weights + move) - change(weights - move) for move in moves]) / (2 * step)
    error = np.sqrt(((weights * influence) ** 2).sum())
    found = fall(name, is_weighted)
    assert found.value == pytest.approx(change(weights), abs=1e-6)
    # the number of rows less one, of each class for the AUC, in the divisor
    assert found.standard_error == pytest.approx(error, rel=0.03)
    reach = stats.norm.ppf(0.975) * found.standard_error
    assert (found.low, found.high) == pytest.approx((found.value - reach, found.value + reach), rel=1e-6)


def test_ne_is_the_log_loss_over_the_entropy_of_the_labels() -> None:
    labels = draw(is_weighted=False)[0]
    entropy = stats.entropy([labels.mean(), 1 - labels.mean()])
    loss, ne = fall("logloss", is_weighted=False), fall("ne", is_weighted=False)
    assert np.array([*vars(ne).values()]) == pytest.approx(
        np.array([*vars(loss).values()]) / entropy, rel=1e-9
    )


@pytest.mark.parametrize("name", ["ndcg@5", "mrr", "hit_rate@5", "precision@5"])
def test_a_group_is_one_draw(name: str) -> None:
    labels, logits, others, _ = draw(is_weighted=False)
    keys = torch.arange(ROWS, dtype=torch.int32) // 7
    of_models = [
        group_values(
            collect_groups(scored(torch.from_numpy(each).float(), torch.from_numpy(labels)), keys), [5]
        )
        for each in (logits, *others)
    ]
    plain, *worse = (each[name].values.numpy() for each in of_models)
    change = plain - np.mean(worse, axis=0)
    found = fall(name, False, keys)
    assert (found.value, found.standard_error) == pytest.approx((change.mean(), stats.sem(change)), rel=1e-9)


def test_equal_scores_do_not_fall() -> None:
    rows = scored(torch.zeros(4), torch.tensor([True, False, True, False]))
    keys = torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    for name in (*FALLS, "gauc", "ndcg@5"):
        found = MetricFall(name, keys).between(rows, [rows.logits], 0.95)
        assert (found.value, found.low, found.high) == (0, 0, 0)


def test_scores_that_are_nan_have_no_fall() -> None:
    rows = scored(torch.zeros(2), torch.tensor([True, False]))
    found = MetricFall("logloss").between(rows, [torch.tensor([0, torch.nan])], 0.95)
    assert np.isnan([found.value, found.low, found.high]).all()


def test_the_influences_of_rows_cancel() -> None:
    """Twice the weight of every row changes nothing."""
    labels, logits, _, weights = draw(is_weighted=True)
    rows = scored(*(torch.from_numpy(each) for each in (logits, labels, weights)))
    value, influence = precision_influences(rows)
    assert value == pytest.approx(average_precision_score(labels, logits, sample_weight=weights), rel=1e-12)
    assert float((rows.weights * influence).sum()) == pytest.approx(0, abs=1e-12)


def test_every_named_metric_has_a_way() -> None:
    assert {*FALLS} == {name for name, metric in METRICS.items() if not metric.of_groups}
