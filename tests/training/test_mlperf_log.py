"""MLPerf's log passes MLPerf's own checkers, and says what keeps a run from the closed division."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlperf_logging.rcp_checker import rcp_checker

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import EpochEnd, EpochStart, EvaluationEnd, EvaluationStart, RunStart, TrainingEnd
from dlrm_app.training.mlperf_log import (
    EVAL_SAMPLES,
    TRAIN_SAMPLES,
    MlperfLog,
    open_division_reasons,
)
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import train_here


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]


def check(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", "6.0.0", "--werror"]
    output = ["--log_output", str(path.with_suffix(".checked"))]
    return subprocess.run([*command, *output, *arguments, str(path)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlperf")
    write_dataset(folder / "dataset", rows={"train": 2048, "val": 500, "test": 100})
    train_here(
        folder / "run",
        f"data.path={folder}/dataset",
        "logging.mllog=true",
        "evaluation.per_epoch=4",
        "report.enabled=true",
    )
    return folder


def test_the_log_of_a_run_passes_the_compliance_checker(folder: Path) -> None:
    """Of the open division."""
    checked = check(folder / "run" / "mlperf.txt")
    assert checked.returncode == 0, checked.stderr
    assert "SUCCESS" in checked.stdout + checked.stderr


def test_the_checker_misses_what_is_left_out(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "run" / "mlperf.txt").read_text().splitlines(keepends=True)
    path = tmp_path / "without.txt"
    path.write_text("".join(line for line in lines if '"run_stop"' not in line))
    assert check(path).returncode != 0


def test_its_lines_are_the_course_of_the_run(folder: Path) -> None:
    lines = lines_of(folder / "run" / "mlperf.txt")
    keys = [line["key"] for line in lines]
    assert keys[:2] == ["cache_clear", "init_start"]
    evaluation = ["eval_start", "eval_accuracy", "eval_stop"]
    end = [*evaluation * 4, "epoch_stop", "run_stop"]
    assert keys[keys.index("init_stop") :] == ["init_stop", "run_start", "epoch_start", *end]
    accuracies = [line for line in lines if line["key"] == "eval_accuracy"]
    assert [line["metadata"]["epoch_num"] for line in accuracies] == [0.25, 0.5, 0.75, 1.0]
    logged = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    aucs = [event["auc"] for event in logged if event["event"] == "eval" and event["split"] == "val"]
    assert [line["value"] for line in accuracies] == aucs
    values = {line["key"]: line["value"] for line in lines}
    assert (values["train_samples"], values["eval_samples"], values["global_batch_size"]) == (2048, 500, 128)
    assert lines[-1]["metadata"]["status"] == "aborted"  # there was no target
    times = [line["time_ms"] for line in lines]
    assert times == sorted(times)


def closed(config: TrainConfig, folder: Path) -> list[str]:
    manifest = read_manifest(folder / "dataset")
    rows = {"train": TRAIN_SAMPLES, "val": EVAL_SAMPLES}
    splits = {name: replace(manifest.splits[name], rows=count) for name, count in rows.items()}
    return open_division_reasons(config, replace(manifest, splits=splits))


def recipe(*changes: str) -> TrainConfig:
    return compose_config("train", TrainConfig, ["experiment=mlperf_dcnv2_rcp", "data.path=x", *changes])


def test_the_recipes_are_of_the_closed_division_and_changes_of_them_are_not(folder: Path) -> None:
    free = ["trainer.global_batch_size=55296", "trainer.seed=7", "trainer.precision=bf16"]
    assert closed(recipe(*free), folder) == []
    assert closed(recipe("optimizer.sparse.lr=0.01"), folder) == ["optimizer.sparse.lr 0.004 → 0.01"]
    changes = ["model.dcn_low_rank_dim=64", "evaluation.target_auc=0.8", "optimizer.dense.ema_decay=0.9"]
    assert closed(recipe(*changes), folder) == [
        "model.dcn_low_rank_dim 512 → 64",
        "optimizer.dense.ema_decay None → 0.9",
        "evaluation.target_auc 0.80275 → 0.8",
    ]
    assert open_division_reasons(recipe(), read_manifest(folder / "dataset")) == [
        f"rows of train {TRAIN_SAMPLES:,} → 2,048",
        f"rows of val {EVAL_SAMPLES:,} → 500",
    ]


def write_log(path: Path, folder: Path, config: TrainConfig, epochs_to_target: float) -> None:
    """A run of the closed division, whose evaluations alone are made up."""
    manifest = read_manifest(folder / "dataset")
    rows = {"train": TRAIN_SAMPLES, "val": EVAL_SAMPLES}
    splits = {name: replace(manifest.splits[name], rows=count) for name, count in rows.items()}
    log = MlperfLog(path, config, replace(manifest, splits=splits))
    log.tell(RunStart())
    log.tell(EpochStart(0))
    for number in range(1, round(20 * epochs_to_target) + 1):
        auc = 0.8028 if number / 20 >= epochs_to_target else 0.8
        log.tell(EvaluationStart("val", number / 20))
        log.tell(EvaluationEnd(Evaluation("val", 0, number, {"auc": auc}), number / 20, None))
    log.tell(EpochEnd(0))
    log.tell(TrainingEnd(has_reached_target=True))


def test_ten_logs_of_the_closed_division_pass_the_rcp_checker(folder: Path, tmp_path: Path) -> None:
    """Whose mean epochs to the target are those of the reference, 0.79 at batch 65,536; much faster ones do not."""
    (tmp_path / "as_published").mkdir()
    (tmp_path / "too_fast").mkdir()
    config = recipe()
    for number in range(10):
        epochs = 0.8 if number % 2 else 0.75
        config.trainer.seed = number
        write_log(tmp_path / "as_published" / f"result_{number}.txt", folder, config, epochs)
        write_log(tmp_path / "too_fast" / f"result_{number}.txt", folder, config, 0.5)
    assert check(tmp_path / "as_published" / "result_0.txt").returncode == 0
    for name, expected in (("as_published", True), ("too_fast", False)):
        passed, message, _ = rcp_checker.check_directory(
            str(tmp_path / name), "training", "6.0.0", False, False, rcp_pass="pruned_rcps"
        )
        assert passed == expected, message


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["resume=auto", "output=x"], "times a run from its first step"),
        (["logging.mlperf.org=''"], "logging.mlperf.org must not be empty"),
    ],
)
def test_what_a_log_cannot_tell_is_refused(keys: list[str], words: str) -> None:
    config = recipe("logging.mllog=true", *keys)
    assert any(words in str(problem) for problem in config.problems())


def test_a_dataset_without_val_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", rows={"train": 500})
    with pytest.raises(ConfigError, match=r"logging\.mllog=true needs a labelled val split"):
        train_here(tmp_path / "run", f"data.path={tmp_path}/dataset", "logging.mllog=true")
