"""model.ensemble_size in whole commands: on two ranks, resumed in the middle of an epoch, and evaluated from a checkpoint."""

from pathlib import Path

import pytest

from tests.integration.test_evaluate import evals, evaluated, train
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import final_bytes, losses

MEMBERS = [
    "data.path=data",
    "model.ensemble_size=4",
    "optimizer=adagrad",
    "trainer.epochs=2",
    "tables.embedding_dim=16",
]
ROW_WISE = "sharding.types=[row_wise]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a dataset of 31 steps an epoch, and a run on one rank."""
    folder = tmp_path_factory.mktemp("members")
    write_dataset(folder / "data", rows={"train": 4000, "val": 501})
    train(folder, *MEMBERS, "output=one")
    return folder


@pytest.mark.long
def test_two_ranks_train_like_one_and_resume_to_the_bit(folder: Path) -> None:
    """Every member reads the same rows whatever the number of ranks, and goes on where it stopped."""
    train(folder, *MEMBERS, ROW_WISE, "output=two", ranks=2)
    assert losses(folder / "two") == pytest.approx(losses(folder / "one"), abs=1e-5)
    train(folder, *MEMBERS, ROW_WISE, "output=cut", "trainer.max_steps=40", ranks=2)
    train(folder, *MEMBERS, ROW_WISE, "output=cut", "resume=auto", ranks=2)
    assert losses(folder / "cut") == losses(folder / "two")
    assert final_bytes(folder / "cut") == final_bytes(folder / "two")


@pytest.mark.long
def test_a_checkpoint_evaluates_to_what_its_run_had(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    metrics = evaluated("checkpoint=one", "split=val")["models"][0]["metrics"]
    expected = evals(folder / "one")[62]
    assert {name: metrics[name] for name in expected} == expected
