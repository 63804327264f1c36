"""Checkpoints written at once and beside training: the same bytes, and the same refusal when they cannot be written."""

from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import DlrmError
from dlrm_app.training.train import train
from tests.data.dataset_fixture import write_dataset

STEPS = 12


def config(tmp_path: Path, output: str, *overrides: str) -> TrainConfig:
    if not (tmp_path / "data").exists():
        write_dataset(tmp_path / "data", rows={"train": 64 * STEPS, "val": 100})
    keys = [
        f"data.path={tmp_path / 'data'}",
        f"output={tmp_path / output}",
        "data.lanes=8",
        "trainer.threads=1",
    ]
    keys += ["trainer.global_batch_size=64", "trainer.log_every_steps=1", "optimizer=adam"]
    keys += ["tables.embedding_dim=4", "model.bottom_mlp=[8]", "model.top_mlp=[8]"]
    return compose_config("train", TrainConfig, [*keys, *overrides])


def tensor_bytes(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(checkpoint.glob("*.distcp"))}


def test_saving_beside_training_saves_the_same_bytes(tmp_path: Path) -> None:
    """At every step, though training went on while the files were written."""
    saved = {}
    for mode in ("false", "true"):
        keys = ["checkpoint.every_steps=1", "checkpoint.keep_last=99", f"checkpoint.asynchronous={mode}"]
        train(config(tmp_path, mode, *keys))
        folders = sorted((tmp_path / mode / "checkpoints").iterdir())
        saved[mode] = {folder.name: tensor_bytes(folder) for folder in folders}
    assert list(saved["true"]) == [f"step-{step:09d}" for step in range(1, STEPS + 1)]
    assert saved["true"] == saved["false"]
    contents = [tuple(files.values()) for files in saved["true"].values()]
    assert len(set(contents)) == STEPS


@pytest.mark.parametrize("mode", ["true", "false"])
def test_a_save_that_fails_ends_the_run_and_says_why(tmp_path: Path, mode: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file where the folder should be")
    keys = ["checkpoint.every_steps=3", f"checkpoint.asynchronous={mode}"]
    with pytest.raises(DlrmError, match=r"step-000000003 could not be written: .*Not a directory") as refused:
        train(config(tmp_path, "run", *keys))
    assert "GiB are free there" in str(refused.value)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) < STEPS
    assert (tmp_path / "run" / "report.html").is_file()
