"""A run finds its dataset from any folder, and after both were moved; another dataset is not taken for it."""

import os
import shutil
from pathlib import Path

import pytest

import dlrm_app
from dlrm_app.errors import DataError
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.runs.checkpoint.trained import dataset_of
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused
from tests.small_run import evaluate_here, train_here


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """The AUC on val of WORK/runs/run, which was trained on WORK/data, named relative to WORK."""
    (tmp_path / "work/runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    write_dataset(Path("data"), rows={"train": 1280, "val": 256})
    train_here(Path("runs/run"), "data.path=data")
    return auc_of("runs/run")


def auc_of(run: str) -> float:
    return evaluate_here(f"checkpoint={run}", "split=val").models[0].metrics["auc"]


def test_a_run_finds_its_dataset_from_any_folder(trained: float, tmp_path: Path) -> None:
    for folder, run in ((tmp_path, "work/runs/run"), (tmp_path / "work/runs/run", "."), (Path("/"), "")):
        os.chdir(folder)
        assert auc_of(run or str(tmp_path / "work/runs/run")) == trained


def test_a_run_and_its_dataset_may_be_moved_together(trained: float, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    Path("work").rename("moved")
    assert auc_of("moved/runs/run") == trained
    Path("moved/runs/run").rename("alone")
    with refused(
        DataError,
        "data",
        "does not exist, and alone/... was trained on the dataset there",
        "...data.path=FOLDER",
    ):
        auc_of("alone")


def test_every_command_names_the_setting_of_a_moved_dataset(trained: float, tmp_path: Path) -> None:
    Path("data").rename("renamed")
    Path("x.tsv").touch()
    rule = "does not exist, and ...run... was trained on the dataset there"
    for call, cure in (
        (lambda: auc_of("runs/run"), "...data.path=FOLDER"),
        (
            lambda: dlrm_app.load("runs/run"),
            "...dlrm-export checkpoint=...run data.path=FOLDER output=EXPORT",
        ),
        (
            lambda: dlrm_app.predict(model="runs/run", input=["x.tsv"], output="s.parquet"),
            "...add encoding=FOLDER",
        ),
        (
            lambda: dlrm_app.export(checkpoint="runs/run", output="e", judgement="ignore"),
            "...add data.path=FOLDER",
        ),
    ):
        with refused(DataError, "...data", rule, cure):
            call()
    with refused(DataError, "data", "does not exist", "if it was moved, give data.path=FOLDER..."):
        train_here(Path("runs/run"), "data.path=data", "resume=auto")


def test_another_dataset_in_its_place_is_not_taken(trained: float, tmp_path: Path) -> None:
    run = next(Path("runs/run/checkpoints").glob("step-*"))
    assert dataset_of(run, read_marker(run), "data") == "data"
    os.chdir(tmp_path)
    shutil.rmtree("work/data")
    write_dataset(Path("work/data"), rows={"train": 640, "val": 256}, seed=5)
    assert dataset_of("work" / run, read_marker("work" / run), "data") == "data"
