"""Runs with batch norm and dropout: any number of ranks, stopped and gone on with, evaluated from a checkpoint."""

from pathlib import Path

import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, events, final_bytes, losses, train_here

NORMED = ["model.batch_norm=true", "trainer.max_steps=12", "optimizer=sgd", "optimizer.sparse.lr=0.01"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regularized")
    write_dataset(folder / "dataset", rows={"train": 4000, "val": 1001})
    train_here(folder / "whole", f"data.path={folder}/dataset", *NORMED)
    return folder


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_do_not_change_what_is_learnt(folder: Path, num_ranks: int) -> None:
    run = folder / f"on-{num_ranks}"
    settings = [*SMALL, f"data.path={folder}/dataset", *NORMED, "report.enabled=false", f"output={run}"]
    train_on_ranks(num_ranks, *settings)
    torch.testing.assert_close(
        torch.tensor(losses(run)), torch.tensor(losses(folder / "whole")), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_stop_changes_nothing(folder: Path, tmp_path: Path, dropout: float) -> None:
    """Running moments are in the checkpoint; dropout draws from seed, step and rank."""
    settings = [f"data.path={folder}/dataset", *NORMED, f"model.dropout={dropout}"]
    train_here(tmp_path / "whole", *settings)
    train_here(tmp_path / "cut", *settings, "trainer.max_steps=5")
    train_here(tmp_path / "cut", *settings, "resume=auto")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert final_bytes(tmp_path / "cut") == final_bytes(tmp_path / "whole")
    assert (losses(tmp_path / "whole") == losses(folder / "whole")) == (dropout == 0)


def test_a_checkpoint_predicts_by_the_running_moments(folder: Path) -> None:
    """Whatever the batch size: each row's score is its own."""
    config = compose_config(
        "evaluate", EvaluateConfig, [f"checkpoint={folder}/whole", "split=val", "batch_size=7", "threads=1"]
    )
    (found,) = evaluate_checkpoints(config).models
    (logged,) = [event for event in events(folder / "whole", "eval") if event["split"] == "val"]
    assert found.metrics["auc"] == pytest.approx(logged["auc"], abs=1e-9)
    assert found.metrics["logloss"] == pytest.approx(logged["logloss"], abs=1e-6)
