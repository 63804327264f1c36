"""Checkpoints written at once and beside training: the same bytes, and the same refusal when they cannot be written."""

import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dlrm_app.config.train import CheckpointConfig, TrainConfig
from dlrm_app.distributed.collectives import new_group
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.errors import DlrmError
from dlrm_app.runs.checkpoint import save as pieces
from dlrm_app.runs.checkpoint import storage
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.names import list_checkpoints
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.runs.checkpoint.save import Checkpoints, not_finite, save_checkpoint, shutdown_seconds
from dlrm_app.runs.checkpoint.tensors import local_pieces
from dlrm_app.training.train import train
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import on_ranks
from tests.refusals import refused
from tests.small_run import small_config

STEPS = 12


def config(tmp_path: Path, output: str, *overrides: str) -> TrainConfig:
    if not (tmp_path / "data").exists():
        write_dataset(tmp_path / "data", rows={"train": 64 * STEPS, "val": 100})
    keys = [f"data.path={tmp_path / 'data'}", f"output={tmp_path / output}", "trainer.global_batch_size=64"]
    return small_config(*keys, "optimizer=adam", *overrides)


def tensor_bytes(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(checkpoint.glob("*.tensors"))}


@pytest.mark.slow
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
    keys = ["checkpoint.every_steps=3", f"checkpoint.asynchronous={mode}", "report.enabled=true"]
    pages: list[Path] = []
    with refused(
        DlrmError,
        ".../run/checkpoints/step-000000003",
        "could not be written: [Errno 20] Not a directory:...",
    ) as caught:
        train(config(tmp_path, "run", *keys), lambda folder: pages.append(folder) or folder)
    assert "GiB are free there" in str(caught.value)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) < STEPS
    assert pages == [tmp_path / "run"]


PATIENCE = timedelta(seconds=3)


def save_slowly(folder: Path, runtime: Runtime) -> float:
    """Seconds of a save in which the second rank's disk takes longer than messages may."""
    write = storage.write_hashed

    def write_slowly(*arguments: Any) -> str:
        time.sleep(5 * runtime.rank)
        return write(*arguments)

    storage.write_hashed = write_slowly
    started = time.monotonic()
    save_one_tensor(folder, runtime)
    return time.monotonic() - started


def save_until_lost(folder: Path, runtime: Runtime) -> float:
    """Seconds until the first rank gives up the second, which falls silent before it writes."""
    if runtime.rank == 1:
        time.sleep(6)
        return 0
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        save_one_tensor(folder, runtime)
    return time.monotonic() - started


def save_one_tensor(folder: Path, runtime: Runtime) -> None:
    tensors: Any = {"model/w": torch.ones(3, 2)}
    marker = Marker(Progress(), LossSums([], 0, 0, 0, []), "", "", {}, {}, 2, {}, 0, {}, "")
    save_checkpoint(folder, tensors, local_pieces(tensors), marker, runtime, new_group(PATIENCE))


@pytest.mark.slow
def test_a_rank_with_a_slow_disk_is_waited_for(tmp_path: Path) -> None:
    assert min(on_ranks(partial(save_slowly, tmp_path / "step-000000001"), 2)) >= 5
    assert len(list_checkpoints(tmp_path)) == 1


@pytest.mark.slow
def test_a_rank_that_is_lost_during_a_save_is_given_up(tmp_path: Path) -> None:
    waited, _ = on_ranks(partial(save_until_lost, tmp_path / "step-000000001"), 2)
    assert 0 < waited < 6
    assert list_checkpoints(tmp_path) == []


def test_a_background_save_lets_training_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def fail(*_: object) -> None:
        may_end.wait(60)
        raise OSError("no space left")

    monkeypatch.setattr(pieces, "save_checkpoint", fail)
    with start_runtime(1) as runtime:
        saves = Checkpoints(tmp_path, CheckpointConfig(asynchronous=True), runtime)
        saves.save({}, Marker(Progress(), LossSums([], 0, 0, 0, []), "", "", {}, {}, 1, {}, 0, {}, ""))
        assert not saves.have_failed()
        may_end.set()
        with pytest.raises(OSError, match="no space left"):
            saves.wait()
        assert not saves.have_failed()
        saves.wait()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 7, 99])
@pytest.mark.parametrize("countable", [7, 1 << 30])
def test_a_single_nan_is_found_wherever_it_lies(
    value: float, place: int, countable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any of the parts in which the values are looked at."""
    monkeypatch.setattr(pieces, "COUNTABLE", countable)
    weight = 3e38 * torch.linspace(-1, 1, 100)
    tensors = {"model/a": torch.zeros(0, 4), "model/b": weight, "dense/c": torch.tensor(1.0)}
    assert not_finite(local_pieces(tensors)) == []
    weight[place] = value
    assert not_finite(local_pieces(tensors)) == ["model/b"]


def test_a_save_longer_than_the_launcher_waits_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "0")
    marker = Marker(Progress(), LossSums([], 0, 0, 0, []), "", "", {}, {}, 1, {}, 0, {}, "")
    with start_runtime(1) as runtime:
        saves = Checkpoints(tmp_path, CheckpointConfig(asynchronous=False, keep_last=1, keep_best=0), runtime)
        for _ in range(2):
            saves.save({"model/w": torch.ones(3)}, marker)
    assert caplog.text.count("saved step-000000000 in ") == 2
    assert caplog.text.count("torchrun kills ranks 0 s after a signal") == 1
    assert shutdown_seconds({"TORCHELASTIC_RUN_ID": "run"}) == 30
    assert shutdown_seconds({}) is None
