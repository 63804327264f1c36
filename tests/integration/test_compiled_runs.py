"""Runs whose dense part is compiled: they learn the same, on any number of ranks, stopped and gone on with."""

from pathlib import Path

import pytest
import torch

from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, final_bytes, losses, train_here

COMPILED = ["trainer.compile=true", "trainer.max_steps=12", "optimizer=sgd", "optimizer.sparse.lr=0.01"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    write_dataset(folder / "dataset", rows={"train": 4000, "val": 1001})
    train_here(folder / "whole", f"data.path={folder}/dataset", *COMPILED)
    return folder


@pytest.mark.long
def test_it_learns_what_a_run_without_learns(folder: Path) -> None:
    train_here(folder / "plain", f"data.path={folder}/dataset", *COMPILED, "trainer.compile=false")
    assert_close(losses(folder / "whole"), losses(folder / "plain"))


@pytest.mark.long
@pytest.mark.parametrize("batch_norm", ["true", "false"])
def test_ranks_do_not_change_what_is_learnt(folder: Path, tmp_path: Path, batch_norm: str) -> None:
    """Batch norm over ranks cannot be compiled: its part goes without."""
    settings = [f"data.path={folder}/dataset", *COMPILED, f"model.batch_norm={batch_norm}"]
    train_here(tmp_path / "one", *settings)
    train_on_ranks(2, *SMALL, *settings, "report.enabled=false", f"output={tmp_path}/two")
    assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"))


@pytest.mark.long
def test_a_stop_changes_nothing(folder: Path, tmp_path: Path) -> None:
    settings = [f"data.path={folder}/dataset", *COMPILED]
    train_here(tmp_path / "cut", *settings, "trainer.max_steps=5")
    torch.compiler.reset()  # another process compiles anew
    train_here(tmp_path / "cut", *settings, "resume=auto")
    assert losses(tmp_path / "cut") == losses(folder / "whole")
    assert final_bytes(tmp_path / "cut") == final_bytes(folder / "whole")


def assert_close(some: list[float], others: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(some), torch.tensor(others), rtol=1e-5, atol=0)
