"""A model trained on a share of the negatives predicts the clicks of all rows: in metrics, scores and exports."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.evaluation.metrics import entropy
from dlrm_app.inference.predict.predict import predict
from tests.composed import compose_config
from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.preprocessing.running import table_of
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, evaluate_here, events, losses, train_here
from tests.weighted_log import describe, draw_rows

ROWS, TEST, SHARE = 300_000, 0.4, 0.1
COMMON = [*SMALL, "report.enabled=false", "trainer.epochs=1", "optimizer.dense.lr=0.01"]
ALL, SAMPLED = (
    [*COMMON, "trainer.global_batch_size=512", "schedule=cosine"],
    [*COMMON, "trainer.epochs=3", "schedule=cosine"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log as datasets: all, sampled, and one of a log whose train and test were sampled before."""
    path = tmp_path_factory.mktemp("sampled")
    rows, _ = draw_rows(ROWS, base=-3.6)
    write_csv(path / "log.csv", rows)
    describe(path)
    text = (path / "log.yaml").read_text()
    (path / "log.yaml").write_text(text.replace("role: weight", "role: ignore"))
    given = [f"dataset={path}/log.yaml", f"input.train={path}/log.csv", f"split.test={TEST}"]
    given += ["encoding.num_embeddings=100", "dense.transform={age:{kind:standardize,mean:44,deviation:15}}"]
    preprocess_here(path / "all", *given)
    preprocess_here(path / "some", *given, f"sampling.negatives={SHARE}")
    (path / "before.yaml").write_text((path / "log.yaml").read_text() + f"negatives_kept: {SHARE}\n")
    keep = np.random.default_rng(7).random(ROWS) < SHARE
    kept = rows.filter(keep | (rows["clicked"].to_numpy() == 1))
    write_csv(path / "before.csv", kept)
    preprocess_here(
        path / "before", f"dataset={path}/before.yaml", f"input.train={path}/before.csv", *given[2:]
    )
    return path


@pytest.fixture(scope="module")
def sampled(folder: Path) -> Path:
    train_here(folder / "run", f"data.path={folder}/some", *SAMPLED)
    return folder / "run"


def scores(run: Path, data: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(probabilities, labels) of a split of a dataset."""
    output = run / f"{data.name}-{split}.parquet"
    words = [f"model={run}", f"data.path={data}", f"split={split}", f"output={output}", "threads=1"]
    if not output.exists():
        predict(compose_config("predict", PredictConfig, words))
    table = pq.read_table(output)
    return table["score"].to_numpy().astype(float), table["label"].to_numpy().astype(float)


def true_chances() -> np.ndarray:
    """Of the rows of the test split."""
    return draw_rows(ROWS, base=-3.6)[1][int(ROWS * (1 - TEST)) :]


@pytest.mark.slow
def test_a_tenth_of_the_negatives_teaches_the_odds_of_all_rows(folder: Path, sampled: Path) -> None:
    """Expected calibration on the whole test split within 2%, AUC within .003 of training on all rows."""
    train_here(folder / "of-all", f"data.path={folder}/all", *ALL)
    chances, (p, y) = true_chances(), scores(sampled, folder / "all", "test")
    of_all, _ = scores(folder / "of-all", folder / "all", "test")
    assert len(table_of(read_manifest(folder / "some"))) < len(table_of(read_manifest(folder / "all"))) / 5
    assert p.sum() / chances.sum() == pytest.approx(1, abs=0.02)
    assert roc_auc_score(y, p) > roc_auc_score(y, of_all) - 0.003
    without = p / (p + SHARE * (1 - p))  # what it would predict had it not been told the share
    assert without.sum() / chances.sum() > 4


@pytest.mark.slow
def test_metrics_of_a_sampled_split_estimate_those_of_all_rows(folder: Path, sampled: Path) -> None:
    """On train: scikit-learn's, where a negative counts ten times; its NE is against the rate of all rows."""
    p, y = scores(sampled, folder / "some", "train")
    w = np.where(y > 0, 1, 1 / SHARE)
    found = evaluate_here(f"checkpoint={sampled}", "split=train").models[0].metrics
    loss, rate = log_loss(y, p, sample_weight=w), w @ y / w.sum()
    assert found["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
    assert found["auc_unweighted"] == pytest.approx(found["auc"], rel=1e-12)
    assert found["logloss"] == pytest.approx(loss, rel=1e-5)
    assert found["ne"] == pytest.approx(loss / entropy(rate), rel=1e-5)
    assert found["calibration"] == pytest.approx(w @ p / (w @ y), rel=1e-5)
    assert found["calibration"] == pytest.approx(1, abs=0.05)
    clicks, rows = read_manifest(folder / "some").clicks_and_rows("train")
    assert clicks / rows == pytest.approx(rate, rel=1e-12)
    every = read_manifest(folder / "all").clicks_and_rows("train")
    assert clicks == every[0]
    assert rows == pytest.approx(every[1], rel=0.02)


def test_whole_splits_are_measured_row_by_row(folder: Path, sampled: Path) -> None:
    p, y = scores(sampled, folder / "all", "test")
    (in_run,) = [event for event in events(sampled, "eval") if event["split"] == "test"]
    assert in_run["logloss"] == pytest.approx(log_loss(y, p), rel=1e-5)
    assert "weight" not in in_run
    assert in_run["judgement"]["verdict"] == "learnt"


@pytest.mark.slow
def test_logs_sampled_before_teach_the_same(folder: Path) -> None:
    """Train and test of such a log: metrics are those of the whole test split, up to chance."""
    train_here(folder / "before-run", f"data.path={folder}/before", *SAMPLED)
    chances, (p, _) = true_chances(), scores(folder / "before-run", folder / "all", "test")
    assert p.sum() / chances.sum() == pytest.approx(1, abs=0.03)
    on_sample, on_all = (
        evaluate_here(f"checkpoint={folder}/before-run", f"data.path={folder}/{name}").models[0].metrics
        for name in ("before", "all")
    )
    for name in ("logloss", "ne", "calibration"):
        assert on_sample[name] == pytest.approx(on_all[name], rel=0.05)
    assert on_sample["auc"] == pytest.approx(on_all["auc"], abs=0.01)


@pytest.mark.long
def test_two_ranks_learn_from_the_sample_as_one_does(folder: Path) -> None:
    keys = [f"data.path={folder}/some", *COMMON, "model.ensemble_size=2", "trainer.calibrate=true"]
    for number in (1, 2):
        train_on_ranks(number, *keys, f"output={folder}/ranks-{number}")
    assert losses(folder / "ranks-2") == pytest.approx(losses(folder / "ranks-1"), rel=1e-5)
    p, _ = scores(folder / "ranks-2", folder / "all", "test")
    assert p.sum() / true_chances().sum() == pytest.approx(1, abs=0.04)


def test_the_first_predictions_are_the_rate_of_all_rows(folder: Path) -> None:
    """The loss of the first step is about the entropy of the sampled rows' rate: bias and share agree."""
    keys = ["trainer.max_steps=1", "optimizer.dense.lr=1e-9", "optimizer.sparse.lr=1e-9"]
    train_here(folder / "first", f"data.path={folder}/some", *COMMON, *keys, "trainer.global_batch_size=4096")
    p, y = scores(folder / "first", folder / "some", "train")
    manifest = read_manifest(folder / "some")
    clicks, rows = manifest.clicks_and_rows("train")
    assert p.mean() == pytest.approx(clicks / rows, rel=0.1)
    assert losses(folder / "first")[0] == pytest.approx(entropy(y.mean()), rel=0.05)


def test_a_warm_start_goes_on_between_shares(folder: Path, sampled: Path) -> None:
    """From the sample to all rows: the first losses are already low, as its logits are of all rows."""
    keys = [f"warm_start.checkpoint={sampled}", "trainer.max_steps=20", "trainer.global_batch_size=512"]
    train_here(folder / "warm", f"data.path={folder}/all", *COMMON, *keys)
    clicks, rows = read_manifest(folder / "all").clicks_and_rows("train")
    assert np.mean(losses(folder / "warm")) < 0.97 * entropy(clicks / rows)
    p, _ = scores(folder / "warm", folder / "all", "test")
    assert p.sum() / true_chances().sum() == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_a_student_learns_the_odds_of_all_rows(folder: Path, sampled: Path) -> None:
    """Its teacher's scores are of all rows, and its own rows are a sample."""
    scores(sampled, folder / "some", "train")
    keys = [f"distillation.scores={sampled}/some-train.parquet", "distillation.share=0.9"]
    train_here(folder / "student", f"data.path={folder}/some", *SAMPLED, *keys)
    p, _ = scores(folder / "student", folder / "all", "test")
    assert p.sum() / true_chances().sum() == pytest.approx(1, abs=0.03)


def test_another_share_is_another_dataset(folder: Path) -> None:
    """Its rows teach other odds: the fingerprint says so, and a run is not resumed on it."""
    first, second = (read_manifest(folder / name) for name in ("some", "before"))
    assert replace(first, negatives_kept={}).fingerprint() != first.fingerprint()
    assert second.negatives_kept == {"train": SHARE, "test": SHARE}
