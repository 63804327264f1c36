"""trainer.learn_val: val is evaluated first and learnt from last, by the same rule as train's rows; stops and ranks change nothing."""

import json
import logging
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.dataset.manifest import Split, write_manifest
from dlrm_app.distributed.signals import Stopped
from dlrm_app.errors import ConfigError
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.reports.run.page import write_report
from dlrm_app.training.run import TrainingRun
from dlrm_app.training.train import take_step
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, events, final_bytes, losses, train_here

LEARNT = [
    "trainer.learn_val=true",
    "trainer.calibrate=true",
    "model.ensemble_size=2",
    "optimizer=adagrad",
    "schedule=polynomial",
    "checkpoint.every_steps=4",
    "checkpoint.keep_last=9",
    "evaluation.every_steps=6",
]
TRAIN_STEPS, VAL_STEPS = 15, 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One epoch of 15 steps, then 7 over val."""
    folder = tmp_path_factory.mktemp("learnt")
    write_dataset(folder / "dataset", rows={"train": 15 * 128 + 3, "val": 7 * 128 + 5, "test": 300})
    train_here(folder / "whole", f"data.path={folder}/dataset", *LEARNT)
    return folder


def test_val_is_evaluated_before_its_rows_are_learnt_from_and_test_after(folder: Path) -> None:
    seen = [(event["split"], event["step"]) for event in events(folder / "whole", "eval")]
    assert seen == [("val", 6), ("val", 12), ("val", TRAIN_STEPS), ("test", TRAIN_STEPS + VAL_STEPS)]
    result = json.loads((folder / "whole" / "result.json").read_text())
    assert result["steps"] == TRAIN_STEPS + VAL_STEPS
    assert len(result["train_loss"]) == 1
    assert "val is learnt from" in result["ended_because"]


def test_until_val_is_evaluated_it_is_the_run_without(folder: Path) -> None:
    """The same losses, rates and evaluations, and the same weights at the end of the epoch."""
    plain = folder / "plain"
    settings = [each for each in LEARNT if each != "trainer.learn_val=true"]
    train_here(plain, f"data.path={folder}/dataset", *settings)
    learnt = [event for event in events(folder / "whole") if event["step"] <= TRAIN_STEPS]
    assert learnt == [event for event in events(plain) if event.get("split") != "test"]
    assert bytes_at(folder / "whole", TRAIN_STEPS) == bytes_at(plain, TRAIN_STEPS)


def test_vals_rows_have_the_schedule_from_its_beginning(folder: Path) -> None:
    """(1 - x)², for x of the epoch's steps and then of val's."""
    rates = [event["lr"] for event in events(folder / "whole", "train")]
    shares = [(1 - n / steps) ** 2 for steps in (TRAIN_STEPS, VAL_STEPS) for n in range(1, steps + 1)]
    for part in ("sparse", "dense"):
        full = rates[0][part] / shares[0]
        assert [each[part] for each in rates] == pytest.approx([full * share for share in shares])


def test_it_learns_as_if_vals_rows_stood_behind_trains(tmp_path: Path) -> None:
    """In the order of the files and one lane that is another dataset, whose train split holds them all: the same to the bit."""
    rows = {"train": 15 * 128, "val": 7 * 128, "test": 300}
    manifest = write_dataset(tmp_path / "apart", rows=rows)
    train, val = manifest.splits["train"], manifest.splits["val"]
    assert train.positives is not None
    assert val.positives is not None
    both = Split(train.rows + val.rows, train.positives + val.positives, 0, [*train.shards, *val.shards])
    shutil.copytree(tmp_path / "apart", tmp_path / "together")
    splits = {"train": both, "test": manifest.splits["test"]}
    write_manifest(tmp_path / "together", replace(manifest, splits=splits))
    settings = ["data.shuffle=false", "data.lanes=1", "model.initial_bias=random"]
    settings += ["trainer.learn_val=true", "evaluation.table_health=false"]
    for name in ("apart", "together"):
        train_here(tmp_path / f"{name}-run", f"data.path={tmp_path / name}", *settings)
    assert losses(tmp_path / "apart-run") == losses(tmp_path / "together-run")
    assert final_bytes(tmp_path / "apart-run") == final_bytes(tmp_path / "together-run")


@pytest.mark.parametrize("step", [TRAIN_STEPS, TRAIN_STEPS + 1, TRAIN_STEPS + 5])
def test_a_stop_changes_nothing(folder: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the last step of train, and in the middle of val."""
    run = folder / f"cut-{step}"
    settings = [f"data.path={folder}/dataset", *LEARNT, "resume=auto"]

    def step_and_stop(training: TrainingRun, *others: Any) -> None:
        take_step(training, *others)
        if training.progress.step == step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("dlrm_app.training.train.take_step", step_and_stop)
    with pytest.raises(Stopped, match=f"after step {step};"):
        train_here(run, *settings)
    train_here(run, *settings)
    assert events(run) == events(folder / "whole")
    assert final_bytes(run) == final_bytes(folder / "whole")


@pytest.mark.long
def test_two_ranks_learn_the_same(folder: Path) -> None:
    settings = [
        *SMALL,
        f"data.path={folder}/dataset",
        *LEARNT,
        "report.enabled=false",
        f"output={folder}/two",
    ]
    train_on_ranks(2, *settings)
    expected = torch.tensor(losses(folder / "whole"))
    torch.testing.assert_close(torch.tensor(losses(folder / "two")), expected, rtol=1e-5, atol=0)
    for found, wanted in zip(events(folder / "two", "eval"), events(folder / "whole", "eval"), strict=True):
        for name in ("auc", "logloss", "calibration"):
            assert found[name] == pytest.approx(wanted[name], rel=1e-5)


def test_the_fit_of_the_last_bias_comes_after_vals_rows(folder: Path) -> None:
    """The final model's predictions for all rows that it learnt from, val's too, add up to their clicks."""
    found = [evaluated(folder / "whole", split) for split in ("train", "val")]
    clicks = sum(each["positives"] for each in found)
    assert sum(each["calibration"] * each["positives"] for each in found) == pytest.approx(clicks, rel=1e-4)


def test_evaluating_such_a_run_on_val_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not on test; not of the checkpoint before val's rows; not on another dataset's val."""
    checkpoints = folder / "whole" / "checkpoints"
    write_dataset(folder / "other", rows={"train": 256, "val": 256}, seed=1)

    def warnings(checkpoint: Path, split: str, *settings: str) -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            evaluated(checkpoint, split, *settings)
        return sum("trainer.learn_val=true" in record.message for record in caplog.records)

    assert warnings(folder / "whole", "val") == 1
    assert warnings(folder / "whole", "test") == 0
    assert warnings(checkpoints / f"step-{TRAIN_STEPS:09d}", "val") == 0
    assert warnings(folder / "whole", "val", f"data.path={folder}/other") == 0


def test_the_report_says_when_val_was_learnt_from(folder: Path) -> None:
    text = write_report(folder / "whole", folder / "report.html").read_text()
    assert f"After step {TRAIN_STEPS} the rows of val were learnt from" in text


def test_a_dataset_without_val_or_with_less_than_a_batch_of_it_trains_as_without(tmp_path: Path) -> None:
    for name, rows in (("none", {"train": 640}), ("few", {"train": 640, "val": 127})):
        write_dataset(tmp_path / name, rows=rows)
        runs = [tmp_path / f"{name}-{learns}" for learns in ("true", "false")]
        for run in runs:
            train_here(run, f"data.path={tmp_path / name}", f"trainer.learn_val={run.name.split('-')[1]}")
        assert final_bytes(runs[0]) == final_bytes(runs[1])


def test_a_run_that_is_cut_short_ends_there(folder: Path, tmp_path: Path) -> None:
    for steps, seen in ((4, ["val", "test"]), (TRAIN_STEPS + 2, ["val", "test"])):
        run = tmp_path / str(steps)
        settings = [*LEARNT[:-1], f"trainer.max_steps={steps}"]
        assert train_here(run, f"data.path={folder}/dataset", *settings).steps == steps
        assert [event["split"] for event in events(run, "eval")] == seen


@pytest.mark.parametrize("key", ["evaluation.patience=2", "evaluation.target_auc=0.7", "logging.mllog=true"])
def test_ends_by_val_are_refused(folder: Path, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"learns from val's rows.*{key.split('=')[0]}"):
        train_here(tmp_path / "run", f"data.path={folder}/dataset", "trainer.learn_val=true", key)


def test_another_epoch_after_val_is_refused(folder: Path, tmp_path: Path) -> None:
    settings = [f"data.path={folder}/dataset", *LEARNT, "trainer.epochs=2"]
    with pytest.raises(ConfigError, match=r"trainer.epochs is 2, .* had 1 when it began to learn from val"):
        train_here(tmp_path / "run", *settings, f"resume={folder}/whole")
    before = folder / "whole" / "checkpoints" / f"step-{TRAIN_STEPS:09d}"
    assert train_here(tmp_path / "run", *settings, f"resume={before}").steps == 2 * TRAIN_STEPS + VAL_STEPS


def evaluated(run: Path, split: str, *settings: str) -> dict[str, float]:
    keys = [f"checkpoint={run}", f"split={split}", "threads=1", *settings]
    return evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, keys)).models[0].metrics


def bytes_at(run: Path, step: int) -> dict[str, bytes]:
    """The tensor files of the checkpoint after ``step`` steps."""
    folder = run / "checkpoints" / f"step-{step:09d}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.distcp"))}
