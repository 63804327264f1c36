"""The metric that decides: best checkpoints, which=best, resumed runs and dlrm-evaluate agree on it."""

from pathlib import Path
from typing import Any

import pytest

from dlrm_app.config.metrics import merit
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.runs.checkpoint.names import best_first, checkpoints_of, choose_checkpoint, list_checkpoints
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import SMALL, evaluate_here, events, train_here

RHYTHM = [
    *SMALL,
    "evaluation.every_steps=2",
    "checkpoint.every_steps=2",
    "evaluation.group_by=c0",
    "evaluation.ranking=[3]",
    "optimizer.sparse.lr=0.5",
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("best") / "dataset"
    write_dataset(folder, rows={"train": 1280, "val": 700, "test": 300})
    return f"data.path={folder}"


def evaluations(run: Path) -> dict[int, dict[str, Any]]:
    return {event["step"]: event for event in events(run, "eval") if event["split"] == "val"}


def best_step(run: Path, metric: str) -> int:
    found = evaluations(run)
    return max(found, key=lambda step: merit(metric, found[step]))


@pytest.mark.parametrize("metric", ["auc", "logloss", "ndcg@3", "mrr"])
def test_the_best_checkpoint_is_that_of_the_metric(metric: str, dataset: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_here(run, dataset, *RHYTHM, "checkpoint.keep_last=1", f"evaluation.best={metric}")
    best = choose_checkpoint(run, "best")
    assert read_marker(best).progress.step == best_step(run, metric)
    words = [f"checkpoint={run}", "which=best", "split=val", "group_by=c0", "ranking=[3]"]
    assert evaluate_here(*words).models[0].metrics[metric] == evaluations(run)[best_step(run, metric)][metric]


def test_a_resumed_run_may_name_another_metric(dataset: str, tmp_path: Path) -> None:
    """The newest checkpoint's metric orders those of before too."""
    run = tmp_path / "run"
    keep = [dataset, *RHYTHM, "checkpoint.keep_last=99"]
    train_here(run, *keep, "trainer.max_steps=6")
    train_here(run, *keep, "resume=auto", "evaluation.best=logloss")
    folders = list_checkpoints(checkpoints_of(run))
    assert read_marker(folders[0]).progress.best == "logloss"
    losses = [
        evaluations(run)[read_marker(folder).progress.step]["logloss"] for folder in best_first(folders)
    ]
    assert len(losses) == len(folders)
    assert losses == sorted(losses)
