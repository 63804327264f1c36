"""Where AUC on val stands still, rates fall and training goes on from the best weights; a resumed run does the same."""

import logging
from pathlib import Path

import pytest
import torch

from dlrm_app.errors import ConfigError
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.events import TrainEvent, read_events
from dlrm_app.training.optimizers import num_falls
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused
from tests.small_run import final_bytes, losses, train_here

STEPS, EPOCHS = 10, 8
PLATEAU = [
    "schedule=plateau",
    "optimizer=adam",
    "optimizer.sparse.lr=0.05",
    "optimizer.dense.lr=0.05",
    f"trainer.epochs={EPOCHS}",
    "checkpoint.keep_last=9",
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows whose labels are drawn by lot, so that AUC soon stands still."""
    folder = tmp_path_factory.mktemp("plateau") / "dataset"
    write_dataset(folder, rows={"train": STEPS * 128, "val": 256})
    return f"data.path={folder}"


def aucs_of(run: Path) -> list[float]:
    marker = read_marker(max((run / "checkpoints").glob("step-*")))
    return [each.metrics["auc"] for each in marker.progress.evals if each.split == "val"]


def tensors_of(checkpoint: Path) -> dict[str, bytes]:
    reader = TensorReader(checkpoint)
    whole = {name: torch.empty(saved.size, dtype=saved.dtype) for name, saved in reader.tensors.items()}
    reader.fill({(name, (0,) * value.dim()): value for name, value in whole.items()})
    return {name: value.numpy().tobytes() for name, value in whole.items()}


def test_each_step_has_the_rate_of_the_evaluations_before(dataset: str, tmp_path: Path) -> None:
    train_here(tmp_path / "run", dataset, *PLATEAU, "trainer.log_every_steps=1")
    aucs, falls = aucs_of(tmp_path / "run"), []
    for event in read_events(tmp_path / "run"):
        if isinstance(event, TrainEvent):
            falls.append(num_falls(aucs[: (event.step - 1) // STEPS], 0))
            assert event.lr["dense"] == pytest.approx(0.05 * max(1e-3, 0.1 ** falls[-1]))
    assert falls[-1] > 0


@pytest.mark.parametrize("per_epoch", [1, 2])
def test_a_fall_begins_again_with_the_best_weights(
    dataset: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, per_epoch: int
) -> None:
    """With rates that fall to nothing, the last weights are the best evaluation's, states included."""
    nothing = [
        f"schedule.{part}.{key}=1e-30"
        for part in ("sparse", "dense")
        for key in ("step_factor", "end_factor")
    ]
    with caplog.at_level(logging.INFO):
        train_here(tmp_path / "run", dataset, *PLATEAU, *nothing, f"evaluation.per_epoch={per_epoch}")
    best = read_marker(max((tmp_path / "run/checkpoints").glob("step-*"))).progress.best_val()
    assert best is not None
    assert best.step < EPOCHS * STEPS
    assert f"back to the weights of step {best.step}," in caplog.text
    last, then = (
        tensors_of(tmp_path / f"run/checkpoints/step-{step:09d}") for step in (EPOCHS * STEPS, best.step)
    )
    weights = [name for name in then if "/weight" in name or name.endswith(("weight", "bias"))]
    assert weights
    assert {name: last[name] for name in weights} == {name: then[name] for name in weights}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [pytest.param(20, marks=pytest.mark.long), 25])
def test_a_resumed_run_is_the_same_to_the_bit(dataset: str, tmp_path: Path, stop: int) -> None:
    halves = [*PLATEAU, "evaluation.per_epoch=2"]
    train_here(tmp_path / "whole", dataset, *halves)
    train_here(tmp_path / "cut", dataset, *halves, f"trainer.max_steps={stop}")
    train_here(tmp_path / "cut", dataset, *halves, "resume=auto")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert final_bytes(tmp_path / "cut") == final_bytes(tmp_path / "whole")


def test_a_plateau_without_what_it_needs_is_refused_before_work(dataset: str, tmp_path: Path) -> None:
    with refused(ConfigError, "schedule.restore_best", "needs the checkpoint of the best evaluation"):
        train_here(tmp_path / "run", dataset, *PLATEAU, "checkpoint.keep_best=0")
    write_dataset(tmp_path / "no_val", rows={"train": 1280})
    with refused(
        ConfigError, "schedule.sparse.kind=plateau", "needs a labelled val split, which ... does not have"
    ):
        train_here(tmp_path / "run", f"data.path={tmp_path}/no_val", *PLATEAU)
    with refused(ConfigError, "schedule.restore_best", "is only for schedule=plateau"):
        train_here(tmp_path / "run", dataset, "schedule.restore_best=true")
