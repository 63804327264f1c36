"""Metrics of requests of every architecture, an ensemble, several labels and weights: by scikit-learn, group by group."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

import dlrm_app as dlrm
from dlrm_app.model.architectures import ARCHITECTURES
from tests.labelled_log import COLUMNS, LABELS, draw_labelled
from tests.make_log import make_log
from tests.model.test_parity import MODELS
from tests.preprocessing.running import run as preprocess_here
from tests.small_run import evaluate_here, train_here

ROWS, TEST, K = 1200, 360, 5
KINDS = {
    "dlrm": ["model=dlrm"],
    **MODELS,
    "concat": ["model=concat", "model.bottom_mlp=[]"],
    "ensemble": ["model=dlrm", "model.ensemble_size=2"],
}
SHORT, LONG = ("dlrm", "dcnv3", "ensemble"), pytest.mark.long
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The labels, scores and weights of the rows of a group."""


def draw() -> pa.Table:
    """Rows of 1 to some 20 a request, with three labels; a tenth count 0."""
    table, random = draw_labelled(ROWS)[0], np.random.default_rng(7)
    weights = np.where(random.random(ROWS) < 0.1, 0, table["importance"].to_numpy())
    table = table.set_column(table.column_names.index("importance"), "importance", pa.array(weights))
    return table.append_column("request", pa.array(random.integers(0, 40, ROWS) ** 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups")
    log = make_log(path, [*COLUMNS, "{name: request, role: ignore, kind: integer}"], draw(), LABELS)
    preprocess_here(path / "data", *log, f"split.test={TEST / ROWS}", "keep=[request]")
    return path


def groups_of(table: pa.Table, label: str, scores: np.ndarray) -> Iterator[Rows]:
    """The rows that count and have ``label``, request by request."""
    values, weights = table[label].to_numpy(), table["importance"].to_numpy()
    requests = table["request"].to_numpy()
    counts = ~np.isnan(values.astype(float)) & (weights > 0)
    for request in np.unique(requests):
        rows = counts & (requests == request)
        if rows.any():
            yield values[rows].astype(bool), scores[rows], weights[rows]


def ndcg(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> float:
    return 1.0 if len(labels) == 1 else float(ndcg_score([labels * weights], [scores], k=K))


def precision(gains: np.ndarray, clicks: int) -> float:
    """The gain of the first rows over the largest possible, times the largest possible share of clicks."""
    return gains[:K].sum() / np.sort(gains)[::-1][:K].sum() * min(K, clicks) / min(K, len(gains))


def over_orders(
    one: Callable[[np.ndarray, int], float],
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], float]:
    """The mean of ``one`` (gains in the order of scores, number of clicks) over both orders of two rows of one score."""

    def mean(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> float:
        rows, gains = np.arange(len(labels)), labels * weights
        return float(np.mean([one(gains[np.lexsort((way, -scores))], labels.sum()) for way in (rows, -rows)]))

    return mean


ONE: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], float]] = {
    f"ndcg@{K}": ndcg,
    "mrr": over_orders(lambda gains, _: 1 / (np.flatnonzero(gains)[0] + 1)),
    f"hit_rate@{K}": over_orders(lambda gains, _: float(gains[:K].any())),
    f"precision@{K}": over_orders(precision),
}


def expected(groups: list[Rows]) -> dict[str, float]:
    with_click = [rows for rows in groups if rows[0].any()]
    found = {name: float(np.mean([one(*rows) for rows in with_click])) for name, one in ONE.items()}
    both = [rows for rows in with_click if not rows[0].all()]
    aucs = [roc_auc_score(labels, scores, sample_weight=weights) for labels, scores, weights in both]
    found["gauc"] = float(np.average(aucs, weights=[weights.sum() for *_, weights in both]))
    return found | {"groups": len(with_click), "groups_without_click": len(groups) - len(with_click)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=LONG if kind not in SHORT else ()) for kind in KINDS]
)
def test_groups_are_measured_as_by_scikit_learn(folder: Path, kind: str) -> None:
    run = folder / kind
    # enough steps that probabilities are equal only where all values of two rows are
    words = ["trainer.epochs=6", "optimizer.dense.lr=0.02", "optimizer.sparse.lr=0.1", *KINDS[kind]]
    train_here(run, f"data.path={folder}/data", *words, "evaluation.test=false")
    keys = [f"checkpoint={run}", "split=test", "group_by=request", f"ranking=[{K}]"]
    (found,) = evaluate_here(*keys).models
    test, model = draw()[ROWS - TEST :], dlrm.load(run)
    scores = model.predict(test.drop_columns(["request", "importance", *model.labels]))
    measured = {"clicked": found.metrics, **{each.name: each.metrics for each in found.labels}}
    assert [*measured] == model.labels
    for number, label in enumerate(model.labels):
        truth = expected([*groups_of(test, label, scores[:, number])])
        assert {name: measured[label][name] for name in truth} == pytest.approx(truth, abs=1e-6), label


def test_every_architecture_is_here() -> None:
    assert {*ARCHITECTURES} <= {*KINDS}
