"""Pairs that interact get the gain of sklearn's logistic regressions; pairs that do not gain nothing."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import OneHotEncoder

from dlrm_app.encoding.pairs import NUM_FOLDS, folds_of_rows, score_pairs
from dlrm_app.logs.strings import MISSING_KEY

ROWS = 20_000


def draw(seed: int, interaction: float) -> tuple[dict[str, NDArray[np.uint64]], NDArray[np.uint8]]:
    """Three columns with effects of their own on the clicks; the first two may interact."""
    random = np.random.default_rng(seed)
    ids = {name: random.integers(0, size, ROWS) for name, size in (("a", 6), ("b", 9), ("c", 5))}
    logit = sum(random.normal(0, 0.5, 9)[each] for each in ids.values()) - 1
    logit += random.normal(0, interaction, (6, 9))[ids["a"], ids["b"]]
    clicks = (random.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(np.uint8)
    return {name: each.astype(np.uint64) * np.uint64(7**20) for name, each in ids.items()}, clicks


@pytest.mark.parametrize("seed", range(5))
def test_columns_that_only_add_up_gain_nothing(seed: int) -> None:
    assert score_pairs(*draw(seed, 0.0)) == []


def test_the_gain_matches_logistic_regressions() -> None:
    columns, labels = draw(0, 0.6)
    (pair,) = score_pairs(columns, labels)
    assert pair.names == ("a", "b")
    parts = np.stack([columns["a"], columns["b"]], 1).astype(str)
    both = np.char.add(np.char.add(parts[:, 0], " "), parts[:, 1])[:, None]
    folds = folds_of_rows(ROWS)

    def loss(features: NDArray[np.str_]) -> float:
        x = OneHotEncoder().fit_transform(features)
        scores = np.empty(ROWS)
        for fold in range(NUM_FOLDS):
            model = LogisticRegression(max_iter=300).fit(x[folds != fold], labels[folds != fold])
            scores[folds == fold] = model.predict_proba(x[folds == fold])[:, 1]
        return float(log_loss(labels, scores))

    entropy = log_loss(labels, np.full(ROWS, labels.mean()))
    gain = (loss(parts) - loss(np.concatenate([parts, both], 1))) / entropy
    assert pair.gain == pytest.approx(gain, rel=0.1)


def test_a_missing_value_is_one_more() -> None:
    columns, labels = draw(1, 0.6)
    gone = {name: np.where(keys == 0, MISSING_KEY, keys) for name, keys in columns.items()}
    assert dict(score_pairs(gone, labels)) == pytest.approx(dict(score_pairs(columns, labels)))
    nothing = {"none": np.full(ROWS, MISSING_KEY), "one": np.zeros(ROWS, np.uint64)}
    assert score_pairs({**gone, **nothing}, labels) == score_pairs(gone, labels)


def test_pairs_of_many_values_are_left_out() -> None:
    columns, labels = draw(2, 0.0)
    columns["a"] = np.arange(ROWS, dtype=np.uint64) % np.uint64(400)
    columns["b"] = np.arange(ROWS, dtype=np.uint64) // np.uint64(400) % np.uint64(3)
    labels = (columns["a"] % 2 == columns["b"] % 2).astype(np.uint8)
    assert score_pairs(columns, labels) == []  # 1,200 cells
    columns["a"] %= np.uint64(200)
    assert [pair.names for pair in score_pairs(columns, labels)] == [("a", "b")]


def test_rows_without_a_click_have_no_pairs() -> None:
    columns, labels = draw(3, 0.6)
    assert score_pairs(columns, labels * 0) == []
    assert score_pairs({name: keys[:0] for name, keys in columns.items()}, labels[:0]) == []
