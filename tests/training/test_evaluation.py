"""trainer.calibrate: the shift is the root that bisection finds; then predictions add up to val's clicks; stops
and ranks change nothing; a run keeps its losses and its ranking."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dlrm_app.training.evaluation import LARGEST, beyond_chance, shift_to_labels
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, evaluate_here, events, losses, train_here

CALIBRATED = ["model.ensemble_size=2", "optimizer=adagrad", "trainer.calibrate=true"]


def root(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The shift under which the predictions add up to the labels, by bisection."""
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        too_few = (logits.double() + middle).sigmoid().sum() < labels.sum()
        low, high = (middle, high) if too_few else (low, middle)
    return low


def test_under_the_shift_predictions_add_up_to_the_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = -3 + torch.randn(20_000, generator=generator)
    labels = torch.bernoulli(truth.sigmoid(), generator=generator) > 0
    spread = np.std([root(truth, torch.bernoulli(truth.sigmoid()) > 0) for _ in range(200)])
    for offset in (-0.7, -0.05, 0.0, 0.08, 0.9):
        logits = truth + offset
        found, error = shift_to_labels(logits.split(4096), float(labels.sum()))
        assert error == pytest.approx(spread, rel=0.2)
        assert found == pytest.approx(root(logits, labels), abs=1e-6)


def test_no_shift_is_larger_than_a_bias_can_mend() -> None:
    assert shift_to_labels([torch.full((4,), -9.0)], 1)[0] == LARGEST
    assert shift_to_labels([torch.full((4,), 9.0)], 1)[0] == -LARGEST
    assert shift_to_labels([torch.full((4,), -1e6)], 1) == (
        0,
        math.inf,
    )  # predictions of 0, which no shift moves


def test_a_shrunk_shift_errs_less_than_a_whole_one() -> None:
    """And all but the last few hundredths is kept of a shift that is far beyond its error."""
    measured = np.random.default_rng(0).normal(0, 0.03, 10_000)
    kept = np.array([beyond_chance(shift, 0.03) for shift in measured])
    assert (kept**2).mean() < 0.6 * (measured**2).mean()
    assert np.abs(kept).max() < np.abs(measured).max()
    assert beyond_chance(-0.4, 0.03) == pytest.approx(-0.4 * (1 - 9 / 1600))
    assert beyond_chance(0.02, 0.03) == beyond_chance(0.0, math.inf) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    write_dataset(folder / "dataset", rows={"train": 1280, "val": 3001}, shifts={"val": 0.7})
    train_here(folder / "whole", f"data.path={folder}/dataset", *CALIBRATED, "checkpoint.every_steps=5")
    return folder


@pytest.mark.long
def test_two_ranks_shift_by_the_same(folder: Path) -> None:
    run = folder / "two"
    settings = [*SMALL, f"data.path={folder}/dataset", *CALIBRATED, "report.enabled=false", f"output={run}"]
    train_on_ranks(2, *settings)
    torch.testing.assert_close(
        torch.tensor(losses(run)), torch.tensor(losses(folder / "whole")), rtol=1e-5, atol=0
    )
    (found,), (expected,) = events(run, "eval"), events(folder / "whole", "eval")
    for name in ("auc", "logloss", "calibration"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)


@pytest.mark.slow
def test_the_fitted_bias_predicts_the_clicks_of_val(folder: Path) -> None:
    """dlrm-evaluate finds it; without val, as many as the train split has. Steps and ranking do not change."""
    train_here(folder / "without", f"data.path={folder}/dataset", *CALIBRATED[:-1])
    assert losses(folder / "without") == losses(folder / "whole")
    fitted, plain = (evaluated(folder / run, "val") for run in ("whole", "without"))
    assert fitted["calibration"] == pytest.approx(1, abs=0.01)
    assert plain["calibration"] < 0.9
    assert fitted["auc"] == pytest.approx(plain["auc"], abs=1e-3)
    (logged,) = events(folder / "whole", "eval")
    assert fitted["calibration"] == pytest.approx(logged["calibration"], abs=1e-6)


def test_without_val_the_fitted_bias_predicts_trains_clicks(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", rows={"train": 1280})
    train_here(tmp_path / "run", f"data.path={tmp_path}/dataset", *CALIBRATED)
    assert evaluated(tmp_path / "run", "train")["calibration"] == pytest.approx(1, abs=1e-4)


def evaluated(run: Path, split: str, which: str = "newest") -> dict[str, float]:
    return evaluate_here(f"checkpoint={run}", f"split={split}", f"which={which}").models[0].metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        ["trainer.epochs=6", "evaluation.patience=1", "optimizer.sparse.lr=0.3", "model.ensemble_size=1"],
        ["evaluation.target_auc=0.4", "evaluation.per_epoch=4"],
        ["trainer.max_steps=8", "evaluation.per_epoch=2"],
    ],
)
def test_the_bias_is_fitted_however_the_run_ends(end: list[str], folder: Path, tmp_path: Path) -> None:
    train_here(tmp_path / "run", f"data.path={folder}/dataset", *CALIBRATED, *end)
    for which in ("newest", "best"):
        assert evaluated(tmp_path / "run", "val", which)["calibration"] == pytest.approx(1, abs=0.01)
    (result,) = events(tmp_path / "run", "eval")[-1:]
    assert evaluated(tmp_path / "run", "val")["logloss"] == pytest.approx(result["logloss"], abs=1e-6)


@pytest.mark.slow
def test_a_best_checkpoint_within_an_epoch_is_reported(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [
        "trainer.epochs=2",
        "optimizer.sparse.lr=3.0",
        "checkpoint.every_steps=3",
        "evaluation.every_steps=3",
    ]
    train_here(tmp_path / "run", f"data.path={folder}/dataset", *CALIBRATED, *keys)
    best = max(events(tmp_path / "run", "eval"), key=lambda event: event["auc"])
    assert best["step"] % 10
    assert f"which=best takes step-{best['step']:09d}" in caplog.text
