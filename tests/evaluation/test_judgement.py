"""Verdicts from measurements alone: their limits, and what few rows or few steps allow to say."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.evaluation.judgement import judge, needs_evidence
from dlrm_app.evaluation.measurements import Evidence, Measurements, TrainedSoFar
from dlrm_app.evaluation.metrics import ClickMetrics
from tests.scored import scored

GOOD = Measurements("val", 10_000, 2500, auc=0.75, ne=0.85, ne_error=0.004, calibration=1.0, train_ne=0.84)
EVIDENCE = Evidence(train=(20_000, 80_000), here=(2500, 10_000), trained=TrainedSoFar(500, 80_000))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "learnt"),
        ({"auc": 0.53, "ne": 0.998}, "learnt"),
        ({"auc": 0.516, "ne": 0.9995}, "no better than a constant"),  # within 0.5 ± 0.017
        ({"auc": 0.7, "ne": 1.39}, "no better than a constant"),
        ({"auc": 0.7, "ne": 1.0, "ne_error": 0.02}, "undecided"),
        ({"auc": 0.55, "ne": 0.998, "num_samples": 400, "positives": 100}, "undecided"),
        ({"auc": 0.48}, "inverted"),
        ({"auc": 0.48, "ne": 1.0, "train_ne": 1.0}, "no better than a constant"),  # nothing is learnt yet
        ({"auc": 0.3, "ne": 1.0, "train_ne": 0.98, "steps": 1}, "no better than a constant"),
        ({"auc": 0.995, "ne": 0.1}, "too good"),
        ({"auc": 1.0, "ne": 0.1, "num_samples": 6, "positives": 2}, "undecided"),
        ({"auc": 0.5, "ne": 5e8, "train_ne": 1e9}, "diverged"),
        ({"auc": math.nan, "ne": math.nan}, "diverged"),
        ({"auc": math.nan, "ne": math.nan, "positives": 0}, "undecided"),
        ({"auc": 0.546, "ne": 0.9908, "train_ne": 1e7}, "diverged"),
        ({"auc": 0.7, "ne": 0.995}, "learnt"),
        ({"train_ne": 3.0}, "learnt"),  # a bad start that was overcome
    ],
)
def test_verdicts(change: dict[str, float], verdict: str) -> None:
    found = replace(GOOD, **change)
    assert judge(found, EVIDENCE).verdict == verdict


def test_one_column_that_ranks_alone_is_too_good() -> None:
    found = replace(GOOD, auc=0.96, ne=0.3)
    assert needs_evidence(found)
    leak = replace(EVIDENCE, column_aucs={"paid": 0.02, "price": 0.7})
    assert judge(found, EVIDENCE).verdict == "learnt"
    judgement = judge(found, leak)
    assert (judgement.verdict, judgement.causes[0].name) == ("too good", "leaked column")
    assert "alone paid ranks train rows with an AUC of 0.9800" in judgement.says


def test_early_in_a_run_nothing_is_blamed_but_the_time() -> None:
    found = replace(GOOD, auc=0.505, ne=1.0, train_ne=1.0)
    early = replace(EVIDENCE, trained=TrainedSoFar(100, 12_800, planned=1000))
    judgement = judge(found, early)
    assert "no better than a constant so far" in judgement.says
    assert [cause.name for cause in judgement.causes] == ["too early"]
    assert judge(found, EVIDENCE).causes[0].name == "labels shuffled"


def test_labels_that_are_ranked_are_not_called_shuffled() -> None:
    """A model cannot rank rows by labels that belong to others."""
    found = replace(GOOD, auc=0.567, ne=1.05, train_ne=1.004)
    assert judge(found, EVIDENCE).causes == []
    (cause,) = judge(found, replace(EVIDENCE, scales={"views": 863.0, "age": 7.0})).causes
    assert cause.name == "scale of a dense column"
    assert "views are of size 863" in cause.measured
    by_chance = replace(found, auc=0.503)
    assert judge(by_chance, replace(EVIDENCE, scales={"views": 863.0})).causes[0].name == "labels shuffled"


def test_a_large_dense_column_comes_before_the_learning_rate() -> None:
    found = replace(GOOD, auc=0.5, ne=40.0, train_ne=1e6)
    evidence = replace(EVIDENCE, scales={"price": 1e9}, growth=80.0, silent=0.99)
    (cause, *others) = judge(found, evidence).causes
    assert "a lower learning rate does not help" in cause.cure
    assert "learning rate too high" not in [other.name for other in others]


numbers = st.floats(0, 1) | st.just(math.nan)


@given(
    st.integers(0, 50),
    st.integers(0, 50),
    numbers,
    st.floats(0, 1e12) | st.just(math.nan),
    st.none() | numbers,
)
def test_any_measurements_are_judged_without_nan(
    positives: int, negatives: int, auc: float, ne: float, train_ne: float | None
) -> None:
    found = Measurements("val", positives + negatives, positives, auc, ne, 0.01, 1.0, train_ne)
    judgement = judge(found, EVIDENCE)
    assert judgement.verdict
    assert judgement.says
    assert all(map(math.isfinite, judgement.measured.values()))


def test_the_error_of_ne_matches_repeated_draws() -> None:
    """By the bootstrap: NE over its own rows' entropy, whose share of positives hardly varies."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, generator=generator) - 1
    labels = torch.bernoulli(logits.sigmoid(), generator=generator)

    def ne_of(rows: torch.Tensor) -> tuple[float, float]:
        metrics = ClickMetrics("val")
        metrics.update(scored(logits[rows], labels[rows]))
        return float(metrics.compute()["ne"]), metrics.ne_error

    drawn = [ne_of(torch.randint(0, 4000, (4000,), generator=generator))[0] for _ in range(300)]
    _, error = ne_of(torch.arange(4000))
    assert error == pytest.approx(torch.tensor(drawn).std().item(), rel=0.2)
