"""A val split of one class: what needs an AUC is refused before work; log loss decides; JSON files are JSON."""

import ast
import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest

from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.records import from_json
from dlrm_app.runs.checkpoint.names import choose_checkpoint
from dlrm_app.runs.events import read_events
from dlrm_app.text import json_text
from tests.commands import Typed
from tests.loader.dataset_fixture import LABEL, rewrite, write_dataset
from tests.small_run import SMALL, train_here

PACKAGE = Path(__file__).resolve().parents[2] / "dlrm_app"
FINGERPRINTS = {"manifest.py", "lineage.py"}
NOT_FILES = {
    "probes.py",  # between processes
    "reference.py",  # the text of --help
    "request.py",  # of serve: an error that quotes a value; of preprocessing: settings that are compared
    "scores_file.py",  # keys of Parquet
    "server.py",  # an example without numbers
    "trial.py",  # names of choices in a study of Optuna's
}


def without_clicks(table: pa.Table) -> pa.Table:
    labels = pa.array(np.zeros(len(table), np.uint8))
    return table.set_column(table.column_names.index(LABEL), LABEL, labels)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", {"train": 2048, "val": 512})
    rewrite(tmp_path / "data", "val", without_clicks)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (
            "train",
            ["evaluation.patience=1"],
            "evaluation.patience compares AUCs on val, which has only ",
        ),
        (
            "train",
            ["evaluation.target_auc=0.7"],
            "evaluation.target_auc compares AUCs on val, which has only ",
        ),
        ("tune", ["tune.trials=2"], "tune.metric=auc compares AUCs on val, which has only "),
    ],
)
def test_settings_that_need_an_auc_are_refused_before_work(
    command: str, words: list[str], said: str, data: Path, typed: Typed
) -> None:
    code, text = typed(command, f"data.path={data}", *SMALL, *words, f"output={data.parent}/out")
    assert code == 2
    assert said in text
    assert "has only negative rows in " in text
    assert ": set " in text
    assert not (data.parent / "out").exists()


@pytest.mark.long
def test_a_tuning_by_log_loss_ends(data: Path, typed: Typed) -> None:
    space = "tune.space=[{key: optimizer.dense.lr, low: 0.001, high: 0.01, log: true}]"
    words = [
        "tune.trials=2",
        "tune.metric=logloss",
        "tune.prune=false",
        space,
        "trainer.max_steps=4",
        "trainer.threads=1",
    ]
    code, text = typed("tune", f"data.path={data}", *SMALL, *words, f"output={data.parent}/study")
    assert code == 0, text
    assert "page: " in text


def strict(path: Path) -> list[Any]:
    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{path} holds {word}, which is not JSON")

    text = path.read_text()
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_a_runs_files_are_json_and_log_loss_finds_the_best(data: Path, typed: Typed) -> None:
    run = data.parent / "run"
    result = train_here(run, f"data.path={data}", "trainer.epochs=3", "checkpoint.keep_last=3")
    for path in [*run.rglob("*.json"), *run.rglob("*.jsonl")]:
        strict(path)
    by_loss = {event.metrics["logloss"]: event for event in read_events(run) if hasattr(event, "metrics")}
    best = by_loss[min(by_loss)]
    assert result.best_epoch == best.epoch
    assert choose_checkpoint(run, "best").name.endswith(f"{best.step:09d}")
    code, text = typed(
        "evaluate", f"checkpoint={run}", "which=best", "split=val", f"output={data.parent}/e.json"
    )
    assert code == 0, text
    (value,) = strict(data.parent / "e.json")
    assert np.isnan(from_json(EvaluationResult, value).models[0].auc_interval.value)


def test_nan_and_infinity_are_null_in_json_and_nan_again() -> None:
    values = {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (float("-inf"),)}}
    assert json.loads(json_text(values)) == {"a": None, "b": [None, 1.5], "c": {"d": [None]}}
    assert np.isnan(from_json(dict[str, float], json.loads(json_text({"x": float("nan")})))["x"])
    assert json_text({"x": 0.1, "y": "±"}) == json.dumps({"x": 0.1, "y": "±"}, ensure_ascii=False)


def test_json_is_written_in_one_place() -> None:
    found = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.dumps", "json.dump")
    }
    assert found == {"text.py", *FINGERPRINTS, *NOT_FILES}
