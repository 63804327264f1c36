"""Evaluations during a run, and of its checkpoints by dlrm-evaluate."""

import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.config.metrics import group_metric_names
from dlrm_app.dataset.manifest import read_manifest, write_manifest
from dlrm_app.dataset.splits import ManifestSource
from dlrm_app.errors import DataError
from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.records import from_json
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import start_ranks, train_on_ranks
from tests.refusals import find_problem, refused
from tests.small_run import SMALL, evaluate_here, events, final_bytes, losses, train_here

METRICS = ("auc", "pr_auc", "logloss", "ne", "calibration", "accuracy", "num_samples", "positives")
OF_GROUPS = ("groups", "groups_without_click", *group_metric_names([5, 10]))


def evals(run: Path, split: str = "val") -> dict[int, dict[str, Any]]:
    """By step, the metrics alone."""
    return {
        event["step"]: {name: event[name] for name in (*METRICS, *OF_GROUPS) if name in event}
        for event in events(run, "eval")
        if event["split"] == split
    }


def evaluated(*overrides: str) -> dict[str, Any]:
    """What dlrm-evaluate finds, run in this process."""
    return asdict(evaluate_here(*overrides))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and two runs of 13 steps on two ranks, row-wise: ``watched`` evaluates and saves on the way."""
    folder = tmp_path_factory.mktemp("clicks")
    write_dataset(folder / "dataset", rows={"train": 1664, "val": 1001, "test": 1003})
    common = [*SMALL, f"data.path={folder}/dataset", "sharding.types=[row_wise]", "report.enabled=false"]
    train_on_ranks(2, *common, f"output={folder}/plain")
    rhythm = ["evaluation.every_steps=4", "evaluation.group_by=c0", "checkpoint.every_steps=4"]
    train_on_ranks(2, *common, *rhythm, "checkpoint.keep_last=9", f"output={folder}/watched")
    return folder


@pytest.mark.slow
def test_evaluations_do_not_change_training(folder: Path) -> None:
    """Two ranks with batches under way: losses, weights and optimizer state to the bit."""
    assert list(evals(folder / "watched")) == [4, 8, 12, 13]
    assert losses(folder / "watched") == losses(folder / "plain")
    assert final_bytes(folder / "watched") == final_bytes(folder / "plain")


@pytest.mark.slow
def test_an_evaluation_while_training_equals_dlrm_evaluates(folder: Path) -> None:
    """What a run says in full flight is what dlrm-evaluate finds for that step's checkpoint, to the bit."""
    settings = [f"checkpoint={folder}/watched/checkpoints/step-000000008", "split=val", "group_by=c0"]
    first, _ = start_ranks(partial(evaluated, *settings, "sharding.types=[row_wise]"), 2, 2)
    found = first["models"][0]["metrics"]
    assert found == evals(folder / "watched")[8]
    assert found["num_samples"] == 1001


def test_ranks_and_plan_do_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, table-wise, another batch size: the metrics of two, row-wise; and the table."""
    monkeypatch.chdir(folder)
    found = evaluated("checkpoint=watched", "batch_size=100", "sharding.types=[table_wise]", "group_by=c0")
    metrics = found["models"][0]["metrics"]
    expected = evals(folder / "watched", "test")[13]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    interval = found["models"][0]["auc_interval"]
    assert interval["low"] < metrics["auc"] < interval["high"]
    printed = str(from_json(EvaluationResult, found))
    for words in ("test: 1,003 rows", "watched/step-000000013", "GAUC"):
        assert words in printed


def test_two_runs_are_compared_on_the_same_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal weights do not differ; an earlier checkpoint does, by the difference of the two AUCs."""
    monkeypatch.chdir(folder)
    same = evaluated("checkpoint=watched", "against=plain")["comparison"]
    assert (same["difference"]["value"], same["p_value"]) == (0, 1)
    found = evaluated("checkpoint=watched", "against=watched/checkpoints/step-000000004")
    first, second = (model["metrics"]["auc"] for model in found["models"])
    assert found["comparison"]["difference"]["value"] == pytest.approx(first - second, abs=1e-15)
    assert 0 < found["comparison"]["p_value"] < 1
    assert "for no difference" in str(from_json(EvaluationResult, found))


def test_new_days_are_evaluated_if_they_have_the_same_encoding(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows, with a column more, are taken; what would give ids another meaning is refused by name."""
    monkeypatch.chdir(folder)
    wider = write_dataset(
        tmp_path / "wider", rows={"train": 1024, "test": 301}, one_hot=(50, 1000, 7), seed=5
    )
    found = evaluated("checkpoint=plain", f"data.path={wider.path}")
    assert found["models"][0]["metrics"]["num_samples"] == 301

    fewer = write_dataset(tmp_path / "fewer", rows={"train": 1024, "test": 301}, one_hot=(50,))
    with refused(DataError, "c1", "is not one of its sparse columns"):
        evaluated("checkpoint=plain", f"data.path={fewer.path}")


def copy_encoded(folder: Path, dataset: Path, checksum: str, kind: str = "other") -> Path:
    """A copy whose ids are said to mean something else, made of a file with that checksum."""
    copy = Path(shutil.copytree(dataset, folder))
    manifest = read_manifest(copy)
    encoded = [replace(each, encoding={"kind": kind}) for each in manifest.sparse]
    sources = [ManifestSource("clicks.tsv", "train", 1, checksum, 1, 0)]
    write_manifest(copy, replace(manifest, sparse=encoded, sources=sources))
    return copy


def test_models_of_one_log_are_compared_on_their_own_datasets(tmp_path: Path) -> None:
    """Encoded in another way: the same files and the same labels, or nothing is tested."""
    write_dataset(tmp_path / "rows", rows={"train": 512, "val": 300})
    write_dataset(tmp_path / "others", rows={"train": 512, "val": 300}, seed=1)
    for name, rows, file in (
        ("a", "rows", "x"),
        ("b", "rows", "x"),
        ("c", "others", "x"),
        ("d", "rows", "y"),
    ):
        data = copy_encoded(tmp_path / f"of {name}", tmp_path / rows, file, kind=name)
        train_here(
            tmp_path / name, f"data.path={data}", "trainer.seed=1" if name == "b" else "trainer.seed=0"
        )
    found = evaluated(f"checkpoint={tmp_path}/a", f"against={tmp_path}/b", "split=val")
    for model, name in zip(found["models"], "ab", strict=True):
        assert model["metrics"]["auc"] == evals(tmp_path / name)[4]["auc"]
    assert 0 < found["comparison"]["p_value"] < 1
    with refused(
        DataError,
        ".../c/checkpoints/step-000000004",
        "...the labels of their datasets' rows are not the same in the same order",
    ):
        evaluated(f"checkpoint={tmp_path}/a", f"against={tmp_path}/c", "split=val")
    with refused(DataError, "c0", "has encoding ...") as caught:
        evaluated(f"checkpoint={tmp_path}/a", f"against={tmp_path}/d", "split=val")
    assert find_problem(caught.value, "...of d", "was not made of the same files...")
