"""A loss that is not finite ends the run, and says where and why; what is not finite is never saved."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dlrm_app.errors import DlrmError
from dlrm_app.training.loop import check_finite
from tests.loader.dataset_fixture import set_value, write_dataset
from tests.refusals import refused
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


def test_nan_weights_are_never_saved(folder: Path) -> None:
    """A finite loss whose update is none."""
    too_much = ["optimizer=sgd", "optimizer.dense.lr=1e38", "optimizer.dense.weight_decay=1e38"]
    with refused(
        DlrmError,
        "step-000000001",
        "is not saved, because model/model.dense_arch.model._mlp.0._linear.bias...",
    ) as refusal:
        run(folder, *too_much, "checkpoint.every_steps=1")
    assert "dense_arch" in str(refusal.value)
    assert "the weights diverged" in str(refusal.value)
    assert not (folder / "run" / "checkpoints").exists()


def test_diverging_weights_are_distinguished_from_bad_rows(folder: Path) -> None:
    """Weights so large that their products overflow, though they are finite themselves."""
    with refused(
        DlrmError, "the loss", "was not finite ...", "its inputs are finite, so the weights diverged..."
    ) as refusal:
        run(folder, "optimizer=sgd", "optimizer.dense.lr=1e38")
    assert "optimizer.dense.lr (1e+38)" in str(refusal.value)


class LargestResult(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operator makes, views of its arguments excluded."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors(args)}
        made = [each for each in _tensors(result) if each.untyped_storage().data_ptr() not in inputs]
        self.num_bytes = max([self.num_bytes, *(each.nbytes for each in made)])
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [each for value in values for each in _tensors(value)] if isinstance(values, list | tuple) else []


def test_finding_bad_weights_takes_no_memory_of_their_size() -> None:
    """Divergence shows on the fullest GPUs: a copy of a table, or a mask, would end in "out of memory" instead."""
    table = torch.zeros(100_000, 8)
    table[-1, -1] = float("nan")
    run: Any = SimpleNamespace(
        progress=SimpleNamespace(step=3, batch=3, epoch=0),
        state=SimpleNamespace(meter=SimpleNamespace(first_bad_step=lambda: 3)),
        trainable=SimpleNamespace(model=torch.nn.ParameterDict({"table": table})),
        config=SimpleNamespace(
            optimizer=SimpleNamespace(sparse=SimpleNamespace(lr=1), dense=SimpleNamespace(lr=1))
        ),
        folder=SimpleNamespace(path=Path("RUN")),
    )
    batches: Any = SimpleNamespace(
        read=lambda _: SimpleNamespace(dense_features=torch.zeros(2, 1)),
        dense_columns=["i1"],
        describe=lambda _: ["rows"],
    )
    with (
        LargestResult() as largest,
        refused(DlrmError, "the loss", "was not finite ...", "...not finite now: table..."),
    ):
        check_finite(run, batches)
    assert largest.num_bytes < 1_000
