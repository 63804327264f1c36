"""Train pipelines on two ranks: what tests/training/test_pipelines.py says of one holds of more."""

from pathlib import Path

import pytest

from tests.commands import command, succeed
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import events, final_bytes, losses
from tests.training.test_pipelines import ON_CPU, VAL_ROWS, WISHES


def run(folder: Path, name: str, *overrides: str) -> Path:
    wishes = ["data.path=data", f"output={name}", "sharding.types=[row_wise]", *overrides]
    succeed(command("train", *WISHES, *wishes, ranks=2), folder, timeout=600)
    return folder / name


@pytest.mark.long
@pytest.mark.parametrize("pipeline", ON_CPU)
def test_two_ranks_evaluate_in_mid_epoch_and_train_on_to_the_bit(pipeline: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", rows={"train": 1000, "val": VAL_ROWS})
    wish = f"trainer.pipeline={pipeline}"
    without = run(tmp_path, "without", wish)
    within = run(tmp_path, "within", wish, "evaluation.every_steps=2")
    assert [event["num_samples"] for event in events(within, "eval")] == [VAL_ROWS] * 8
    assert losses(within) == losses(without)
    assert final_bytes(within) == final_bytes(without)
