"""Runs in MLflow, read back by its own client from a store of this machine."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import TrainEvent
from dlrm_app.runs.tracking import Tracking, attach, publish, run_ids_in, track_study

CONFIG = {"trainer": {"epochs": 2}, "note": "x" * 1000, "empty": None}
DATASET = {"path": "data", "fingerprint": "f00"}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "shop")
    return MlflowClient(uri, uri)


def track(run: Path, step: int = 0, loss: float = 0.5, *, is_finished: bool = True) -> str:
    run.mkdir(parents=True, exist_ok=True)
    (run / "report.html").write_text("page")
    tracker = Tracking(["mlflow"])
    tracker.begin(run, CONFIG, DATASET, step)
    tracker.add(TrainEvent(0, step + 5, loss, 1000.0, {"sparse": 0.02}))
    tracker.add(Evaluation("val", 0, step + 7, {"auc": 0.75, "ndcg@10": 0.5}))
    tracker.end([run / "report.html"], is_finished=is_finished)
    return run_ids_in(run)["mlflow"]


@pytest.mark.slow
def test_a_run_and_its_resumption_are_one(tmp_path: Path, client: MlflowClient) -> None:
    """With parameters, metrics, tags and files; the second part ends it."""
    known = track(tmp_path / "shop" / "run", is_finished=False)
    assert client.get_run(known).info.status == "KILLED"
    assert track(tmp_path / "shop" / "run", step=10, loss=0.4) == known
    found = client.get_run(known)
    (experiment,) = client.search_experiments(filter_string="name = 'shop'")
    assert (found.info.experiment_id, found.info.run_name) == (experiment.experiment_id, "shop/run")
    assert found.info.status == "FINISHED"
    assert found.data.params == {"trainer.epochs": "2", "note": "x" * 500}
    assert [(each.step, each.value) for each in client.get_metric_history(known, "train/loss")] == [
        (5, 0.5),
        (15, 0.4),
    ]
    assert [(each.step, each.value) for each in client.get_metric_history(known, "val/auc")] == [
        (7, 0.75),
        (17, 0.75),
    ]
    assert found.data.metrics["val/ndcg_at_10"] == 0.5
    tags = found.data.tags
    assert (tags["dlrm.dataset_fingerprint"], tags["dlrm.resumed_from_step"]) == ("f00", "10")
    assert [each.path for each in client.list_artifacts(known)] == ["report.html"]


@pytest.mark.slow
def test_trials_are_children_of_their_study(tmp_path: Path, client: MlflowClient) -> None:
    (tmp_path / "study").mkdir()
    track_study(tmp_path / "study", ["mlflow"], {"tune": {"trials": 2}})
    trials = [track(tmp_path / "study" / "trials" / name) for name in ("0000", "0001")]
    parent = run_ids_in(tmp_path / "study")["mlflow"]
    assert {client.get_run(trial).data.tags["mlflow.parentRunId"] for trial in trials} == {parent}


@pytest.mark.slow
def test_the_alias_moves_to_the_published_day(tmp_path: Path, client: MlflowClient) -> None:
    """A day that is published again, after one that was deleted, keeps its version."""
    days = [tmp_path / "shop" / "days" / day for day in ("2026-11-01", "2026-11-02")]
    for day in days:
        known = track(day / "model")
        (day / "export").mkdir()
        (day / "export" / "export.json").write_text("{}")
        attach(day / "model", day / "export")
        assert [each.path for each in client.list_artifacts(known, "export")] == ["export/export.json"]
    versions = []
    for day in [*days, days[0]]:
        publish(day / "model", day / "export", "shop")
        found = client.get_model_version_by_alias("shop", "published")
        versions.append((found.version, Path(found.source).parent.name))
    assert [day for _, day in versions] == ["2026-11-01", "2026-11-02", "2026-11-01"]
    assert versions[0] == versions[2]
    assert len(client.search_model_versions("name='shop'")) == 2
