"""Weights of rows from the log to metrics: one rank and two, ensembles, calibration, exports, scores."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.export import ExportConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference.export import export_model
from dlrm_app.inference.predict.predict import predict
from tests.composed import compose_config
from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.preprocessing.running import table_of
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, evaluate_here, events, final_bytes, losses, train_here
from tests.weighted_log import describe, draw_rows

COMMON = [*SMALL, "report.enabled=false", "trainer.epochs=2", "optimizer.dense.lr=0.01"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weighted")
    describe(path)
    write_csv(path / "log.csv", draw_rows(6000)[0])
    given = [f"dataset={path}/log.yaml", f"input.train={path}/log.csv", "split.val=0.2", "split.test=0.2"]
    preprocess_here(path / "data", *given, "encoding.num_embeddings=100")
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train_here(folder / "run", f"data.path={folder}/data", *COMMON)
    return folder / "run"


def scores(folder: Path, run: Path, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(probabilities, labels, weights) of a split, by dlrm-predict and from the shards."""
    output = run / f"{split}.parquet"
    words = [f"model={run}", f"data.path={folder}/data", f"split={split}", f"output={output}", "threads=1"]
    if not output.exists():
        predict(compose_config("predict", PredictConfig, words))
    shard = table_of(read_manifest(folder / "data"), split)
    table = pq.read_table(output)
    assert table["label"].to_pylist() == shard["clicked"].to_pylist()
    columns = table["score"], shard["clicked"], shard["importance"]
    return tuple(column.to_numpy().astype(np.float64) for column in columns)  # type: ignore[return-value]  # three


def test_metrics_are_scikit_learns_on_the_scores(folder: Path, run: Path) -> None:
    p, y, w = scores(folder, run, "test")
    result = evaluate_here(f"checkpoint={run}")
    found = result.models[0].metrics
    assert found["auc"] == pytest.approx(roc_auc_score(y, p, sample_weight=w), abs=1e-6)
    assert found["auc_unweighted"] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
    assert found["logloss"] == pytest.approx(log_loss(y, p, sample_weight=w), rel=1e-5)
    assert found["calibration"] == pytest.approx(w @ p / (w @ y), rel=1e-5)
    assert found["weight"] == pytest.approx(w.sum(), rel=1e-9)
    (in_run,) = [event for event in events(run, "eval") if event["split"] == "test"]
    assert in_run["auc"] == pytest.approx(found["auc"], rel=1e-12)
    interval = result.models[0].logloss_interval
    assert interval is not None
    assert interval.value == pytest.approx(found["logloss"], rel=1e-9)


def test_scores_and_blends_use_the_same_weights(folder: Path, run: Path) -> None:
    scores(folder, run, "test")
    words = [f"checkpoint={run}", f"scores=[{run}/test.parquet]", "blend=[1,1]"]
    first, second, blend = evaluate_here(*words).models
    for other in (second, blend):
        assert other.metrics["auc"] == pytest.approx(first.metrics["auc"], abs=1e-5)
        assert other.metrics["weight"] == first.metrics["weight"]


def test_weights_false_counts_every_row_once(folder: Path, run: Path) -> None:
    """In training as on a dataset without weights, to the bit; and in dlrm-evaluate."""
    keys = [f"data.path={folder}/data", *COMMON, "trainer.weights=false"]
    train_here(folder / "alike", *keys)
    log = (folder / "log.yaml").read_text().replace("role: weight", "role: ignore")
    (folder / "plain.yaml").write_text(log)
    given = [f"dataset={folder}/plain.yaml", f"input.train={folder}/log.csv", "encoding.num_embeddings=100"]
    preprocess_here(folder / "plain", *given, "split.val=0.2", "split.test=0.2")
    train_here(folder / "without", f"data.path={folder}/plain", *COMMON)
    assert losses(folder / "alike") == losses(folder / "without")
    assert final_bytes(folder / "alike") == final_bytes(folder / "without")
    assert "weight" not in events(folder / "alike", "eval")[-1]
    assert losses(folder / "alike") != losses(run)
    p, y, _ = scores(folder, run, "test")
    found = evaluate_here(f"checkpoint={run}", "weights=false").models[0].metrics
    assert found["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
    assert "weight" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "within"),
    [
        pytest.param((), 1e-5, marks=pytest.mark.long),
        (("model.ensemble_size=2",), 1e-5),
        (("model=dcn", "trainer.precision=bf16"), 2e-3),
        pytest.param(("model=projection", "trainer.kernels=libraries"), 1e-5, marks=pytest.mark.long),
    ],
)
def test_two_ranks_train_as_one_does(folder: Path, more: tuple[str, ...], within: float) -> None:
    keys = [f"data.path={folder}/data", *COMMON, "trainer.epochs=1", "trainer.calibrate=true", *more]
    outputs = [folder / f"{number}-{'-'.join(more).replace('=', '.')}" for number in (1, 2)]
    for number, output in zip((1, 2), outputs, strict=True):
        train_on_ranks(number, *keys, f"output={output}")
    assert losses(outputs[1]) == pytest.approx(losses(outputs[0]), rel=within)
    alone, together = (events(output, "eval")[-1] for output in outputs)
    for name in ("auc", "auc_unweighted", "logloss", "ne", "calibration", "weight"):
        assert together[name] == pytest.approx(alone[name], rel=2e-3)


def test_calibration_fits_the_weight_of_clicks(folder: Path) -> None:
    """Of the train split, whose clicks it knows."""
    keys = [f"data.path={folder}/data", *COMMON, "trainer.epochs=1", "trainer.calibrate=true"]
    train_here(folder / "calibrated", *keys)
    p, y, w = scores(folder, folder / "calibrated", "train")
    assert w @ p / (w @ y) == pytest.approx(1, abs=0.02)  # val may correct it


def test_the_first_bias_is_the_weighted_base_rate(folder: Path) -> None:
    keys = [f"data.path={folder}/data", *COMMON, "trainer.max_steps=1", "model.initial_bias=base_rate"]
    train_here(folder / "first", *keys, "optimizer.dense.lr=1e-9", "optimizer.sparse.lr=1e-9")
    p, y, w = scores(folder, folder / "first", "train")
    assert abs(p.mean() - w @ y / w.sum()) < 0.03 < abs(w @ y / w.sum() - y.mean()) + 0.03


def test_exports_are_verified_by_weight(folder: Path, run: Path) -> None:
    words = [f"checkpoint={run}", f"output={folder}/export", "format=torchscript", "threads=1"]
    record = export_model(compose_config("export", ExportConfig, words)).record
    expected = evaluate_here(f"checkpoint={run}").models[0].metrics["auc"]
    (found,) = record.proofs
    assert found.auc_trained == pytest.approx(expected, abs=1e-6)
