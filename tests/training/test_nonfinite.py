"""A loss that is not finite ends the run, and says where and why; what is not finite is never saved."""

from pathlib import Path

import pytest

from dlrm_app.errors import DlrmError
from tests.loader.dataset_fixture import set_value, write_dataset
from tests.small_run import train_here

BATCH = 64
IN_FILE_ORDER = ["data.shuffle=false", "data.lanes=1", f"trainer.global_batch_size={BATCH}"]


def run(folder: Path, *overrides: str) -> None:
    train_here(folder / "run", f"data.path={folder}/data", *IN_FILE_ORDER, *overrides)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds data: six batches of training rows, each a shard of its own."""
    write_dataset(tmp_path / "data", rows={"train": 6 * BATCH}, rows_per_group=BATCH, rows_per_shard=BATCH)
    return tmp_path


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_bad_value_ends_the_run_with_its_step_rows_and_column(folder: Path, value: str) -> None:
    """Whenever the log reads the loss; the checkpoint before it stays."""
    set_value(folder / "data", "i1", 5, float(value), shard=3)
    for every in (1, 6):
        with pytest.raises(DlrmError) as refusal:
            run(folder, f"trainer.log_every_steps={every}", "checkpoint.every_steps=2", "resume=auto")
        for words in (
            "not finite at step 4 (epoch 1), on rows of train/part-00003.parquet (row group 0)",
            "dense column i1 of its rows is not finite: preprocess them again",
            "resume=auto continues from step-000000002",
        ):
            assert words in str(refusal.value)


def test_weights_that_are_no_numbers_are_never_saved(folder: Path) -> None:
    """A finite loss whose update is none."""
    too_much = ["optimizer=sgd", "optimizer.dense.lr=1e38", "optimizer.dense.weight_decay=1e38"]
    with pytest.raises(
        DlrmError, match="step-000000001 is not saved, because these are not finite"
    ) as refusal:
        run(folder, *too_much, "checkpoint.every_steps=1")
    assert "dense_arch" in str(refusal.value)
    assert "The weights diverged" in str(refusal.value)
    assert not (folder / "run" / "checkpoints").exists()


def test_weights_that_diverge_are_told_from_bad_rows(folder: Path) -> None:
    """Weights so large that their products overflow, though they are finite themselves."""
    with pytest.raises(DlrmError, match="its inputs are finite, so the weights diverged") as refusal:
        run(folder, "optimizer=sgd", "optimizer.dense.lr=1e38")
    assert "optimizer.dense.lr (1e+38)" in str(refusal.value)
