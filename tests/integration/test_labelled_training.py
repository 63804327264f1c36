"""Several labels from the log to scores: ranks, resumes, metrics, calibration, sampling, exports, serving."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, ndcg_score, roc_auc_score

from dlrm_app import load
from dlrm_app.config.export import ExportConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError
from dlrm_app.inference.export import export_model
from dlrm_app.inference.exported_model import open_export
from dlrm_app.inference.predict.predict import predict
from dlrm_app.inference.serve.request import RequestError
from dlrm_app.inference.serve.scoring import open_served
from tests.composed import compose_config
from tests.inference.shop import body_of
from tests.labelled_log import describe_labels, draw_labelled
from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.preprocessing.running import table_of
from tests.ranks import train_on_ranks
from tests.refusals import refused
from tests.small_run import SMALL, evaluate_here, events, final_bytes, losses, train_here

ROWS, LABELS = 12_000, ("clicked", "order", "like")
COMMON = [*SMALL, "report.enabled=false", "trainer.epochs=2", "optimizer.dense.lr=0.01"]


def dataset(folder: Path, name: str, *more: str) -> None:
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/log.csv", "split.val=0.2", "split.test=0.2"]
    preprocess_here(folder / name, *given, "encoding=hash", "encoding.num_embeddings=400", *more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled")
    describe_labels(path)
    write_csv(path / "log.csv", draw_labelled(ROWS)[0])
    dataset(path, "data")
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train_here(folder / "run", f"data.path={folder}/data", *COMMON)
    return folder / "run"


def test_balanced_labels_train_as_with_the_same_typed_weights(folder: Path) -> None:
    known = read_manifest(folder / "data").splits["train"]
    weight = known.rows / known.labels["like"].rows
    labels = f"dataset.labels=[clicked,{{order:{{given:clicked,loss_weight:2}}}},{{like:{{loss_weight:{weight!r}}}}}]"
    dataset(folder, "typed", labels)
    train_here(folder / "typed_run", f"data.path={folder}/typed", *COMMON)
    train_here(folder / "balanced", f"data.path={folder}/data", *COMMON, "trainer.balance_labels=true")
    assert weight > 1
    assert losses(folder / "balanced") == losses(folder / "typed_run")
    assert final_bytes(folder / "balanced") == final_bytes(folder / "typed_run")


def predicted(
    folder: Path, model: Path, split: str = "test", data: str = "data"
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Label → (probabilities, labels) of the rows that have it, by dlrm-predict."""
    output = folder / f"{model.name}-{split}.parquet"
    words = [
        f"model={model}",
        f"data.path={folder}/{data}",
        f"split={split}",
        f"output={output}",
        "threads=1",
    ]
    if not output.exists():
        predict(compose_config("predict", PredictConfig, words))
    table, found = pq.read_table(output), {}
    for name in LABELS:
        end = "" if name == LABELS[0] else f"_{name}"
        labels = table[f"label{end}"].to_pandas()
        known = labels.notna().to_numpy()
        found[name] = table[f"score{end}"].to_numpy()[known].astype(float), labels[known].to_numpy(float)
    return found


def test_metrics_of_each_label_are_scikit_learns(folder: Path, run: Path) -> None:
    (model,) = evaluate_here(f"checkpoint={run}").models
    measured = {LABELS[0]: model.metrics, **{each.name: each.metrics for each in model.labels}}
    for name, (p, y) in predicted(folder, run).items():
        found = measured[name]
        assert found["num_samples"] == len(y)
        assert found["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
        assert found["logloss"] == pytest.approx(log_loss(y, p), rel=1e-5)
        assert found["calibration"] == pytest.approx(p.sum() / y.sum(), rel=1e-5)
    shard = table_of(read_manifest(folder / "data"), "test")
    like = shard["like"].to_numpy()
    assert predicted(folder, run)["like"][1].tolist() == like[~np.isnan(like)].tolist()


def test_events_and_the_result_have_the_metrics_of_each_label(run: Path) -> None:
    (model,) = evaluate_here(f"checkpoint={run}").models
    (event,) = [each for each in events(run, "eval") if each["split"] == "test"]
    result = json.loads((run / "result.json").read_text())["evals"]["test"]
    for each in model.labels:
        for written in (event, result):
            assert written["labels"][each.name]["auc"] == pytest.approx(each.metrics["auc"], rel=1e-12)


def test_groups_of_each_label_are_measured_on_its_rows(folder: Path, run: Path) -> None:
    """NDCG within users by scikit-learn, of the rows that have the label."""
    dataset(folder, "kept", "keep=[user]")
    words = [f"checkpoint={run}", f"data.path={folder}/kept", "group_by=user", "ranking=[3]"]
    (model,) = evaluate_here(*words).models
    measured = {LABELS[0]: model.groups, **{each.name: each.groups for each in model.labels}}
    predicted(folder, run)
    table, users = pq.read_table(folder / "run-test.parquet"), draw_labelled(ROWS)[0]["user"].to_numpy()
    for name in LABELS:
        end = "" if name == LABELS[0] else f"_{name}"
        y = table[f"label{end}"].to_pandas().to_numpy(float)
        p, user, truth = table[f"score{end}"].to_numpy().astype(float), users[-len(y) :], []
        for number in np.unique(user):
            own = (user == number) & ~np.isnan(y)
            if y[own].any():
                truth.append(1.0 if own.sum() == 1 else ndcg_score(y[own][None], p[own][None], k=3))
        (found,) = [each for each in measured[name] if each.name == "ndcg@3"]
        # scores are probabilities in float32, so a few rows change places
        assert found.interval.value == pytest.approx(np.mean(truth), abs=1e-3)


def test_every_label_is_learnt(folder: Path, run: Path) -> None:
    """The labels of a model know more than chance, and an order is less likely than its click in every row."""
    for p, y in predicted(folder, run).values():
        assert roc_auc_score(y, p) > 0.54
    table = pq.read_table(folder / "run-test.parquet")
    assert (table["score_order"].to_numpy() <= table["score"].to_numpy()).all()


def test_columns_that_have_the_names_of_scores_are_not_kept(folder: Path, run: Path) -> None:
    pq.write_table(draw_labelled(20)[0], folder / "few.parquet")
    for name in ("score_order", "label_like"):
        words = [
            f"model={run}",
            f"input={folder}/few.parquet",
            f"keep=[{name}]",
            f"output={folder}/kept.parquet",
        ]
        with refused(
            ConfigError, "keep", "names a column that the scores have themselves, which it would replace"
        ):
            predict(compose_config("predict", PredictConfig, words))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "within"),
    [
        pytest.param((), 1e-5, marks=pytest.mark.long),
        (("model.ensemble_size=2",), 1e-5),
    ],
)
def test_two_ranks_train_as_one_does(folder: Path, more: tuple[str, ...], within: float) -> None:
    keys = [f"data.path={folder}/data", *COMMON, "trainer.epochs=1", "trainer.calibrate=true", *more]
    outputs = [folder / f"{number}-{'-'.join(more).replace('=', '.')}" for number in (1, 2)]
    for number, output in zip((1, 2), outputs, strict=True):
        train_on_ranks(number, *keys, f"output={output}")
    assert losses(outputs[1]) == pytest.approx(losses(outputs[0]), rel=within)
    alone, together = (events(output, "eval")[-1]["labels"] for output in outputs)
    for name in LABELS[1:]:
        assert together[name]["auc"] == pytest.approx(alone[name]["auc"], rel=max(within, 2e-3) * 2)


def test_a_resumed_run_is_the_same_to_the_bit(folder: Path, run: Path) -> None:
    keys = [f"data.path={folder}/data", *COMMON]
    train_here(folder / "halves", *keys, "trainer.max_steps=20")
    train_here(folder / "halves", *keys, "resume=auto")
    assert final_bytes(folder / "halves") == final_bytes(run)


def test_calibration_fits_every_label(folder: Path) -> None:
    """An order's bias too, given the click. Without val nothing else corrects what fits the train split."""
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/log.csv", "split.test=0.2"]
    preprocess_here(folder / "no_val", *given, "encoding=hash", "encoding.num_embeddings=400")
    keys = [f"data.path={folder}/no_val", *COMMON, "trainer.epochs=1", "trainer.calibrate=true"]
    train_here(folder / "calibrated", *keys)
    for p, y in predicted(folder, folder / "calibrated", "train", "no_val").values():
        assert p.sum() / y.sum() == pytest.approx(1, abs=1e-4)


def test_the_first_biases_are_the_base_rates(folder: Path) -> None:
    keys = [f"data.path={folder}/data", *COMMON, "trainer.max_steps=1", "model.initial_bias=base_rate"]
    train_here(folder / "first", *keys, "optimizer.dense.lr=1e-9", "optimizer.sparse.lr=1e-9")
    for p, y in predicted(folder, folder / "first", "train").values():
        assert p.mean() == pytest.approx(y.mean(), rel=0.15)


def test_a_sampled_log_predicts_the_frequencies_of_the_whole_one(folder: Path) -> None:
    """Of an order, which needs the click, and of a like, which does not: val and test are whole."""
    dataset(folder, "sampled", "sampling.negatives=0.25")
    keys = [f"data.path={folder}/sampled", *COMMON, "trainer.epochs=1", "trainer.calibrate=true"]
    train_here(folder / "thin", *keys)
    found = {name: p.sum() / y.sum() for name, (p, y) in predicted(folder, folder / "thin").items()}
    assert found == pytest.approx(dict.fromkeys(LABELS, 1.0), abs=0.08)


def test_a_warm_start_from_one_label_keeps_its_top_mlp(folder: Path) -> None:
    (folder / "one").mkdir()
    log = (
        (folder / "log.yaml")
        .read_text()
        .replace("labels: [clicked, {order: {given: clicked, loss_weight: 2}}, like]", "label: clicked")
    )
    (folder / "one.yaml").write_text(log)
    given = [f"dataset={folder}/one.yaml", f"input.train={folder}/log.csv", "split.val=0.2", "split.test=0.2"]
    preprocess_here(folder / "one" / "data", *given, "encoding=hash", "encoding.num_embeddings=400")
    train_here(folder / "one" / "run", f"data.path={folder}/one/data", *COMMON)
    before = evaluate_here(f"checkpoint={folder}/one/run").models[0].metrics["auc"]
    keys = [f"data.path={folder}/data", *COMMON, f"warm_start.checkpoint={folder}/one/run"]
    slow = [
        "optimizer.dense.lr=1e-9",
        "optimizer.sparse.lr=1e-9",
        "trainer.max_steps=1",
        "warm_start.optimizer=false",
    ]
    with refused(
        ConfigError, "dataset.labels", "has [{order:{given:clicked}},like] beside the main label, ... has []"
    ):
        train_here(folder / "refused", *keys, *slow)
    train_here(folder / "more", *keys, *slow, "warm_start.allow=[label]")
    after = evaluate_here(f"checkpoint={folder}/more").models[0].metrics["auc"]
    assert after == pytest.approx(before, abs=1e-4)


def test_a_model_of_several_labels_is_measured_on_rows_of_one(
    folder: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (model,) = evaluate_here(f"checkpoint={run}", f"data.path={folder}/one/data").models
    (own,) = evaluate_here(f"checkpoint={run}").models
    assert model.metrics["auc"] == own.metrics["auc"]
    assert model.labels == []
    assert "lacks order, like, which run/" in caplog.text


def test_distillation_of_several_labels_is_refused(folder: Path, run: Path) -> None:
    predicted(folder, run, "train")
    keys = [f"data.path={folder}/data", *COMMON, f"distillation.scores={folder}/run-train.parquet"]
    with refused(ConfigError, "distillation.scores", "has the scores of one label, ... has several"):
        train_here(folder / "student", *keys)


@pytest.fixture(scope="module")
def export(folder: Path, run: Path) -> Path:
    return exported(run, folder / "export")


def exported(run: Path, output: Path, *more: str) -> Path:
    words = [f"checkpoint={run}", f"output={output}", "format=torchscript", "threads=1", *more]
    export_model(compose_config("export", ExportConfig, words))
    return output


def test_an_export_scores_every_label_as_the_model_does(folder: Path, run: Path, export: Path) -> None:
    assert open_export(export).labels == [*LABELS]
    for name, (p, _) in predicted(folder, export).items():
        np.testing.assert_allclose(p, predicted(folder, run)[name][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("tasks", ["mmoe", "ple"])
@pytest.mark.long
def test_experts_resume_to_the_bit_and_are_exported(folder: Path, tasks: str) -> None:
    """Two such models as an ensemble, trained in two parts and in one."""
    words = [f"data.path={folder}/data", *COMMON, f"model.tasks={tasks}", "model.ensemble_size=2"]
    words += ["model.experts.mlp=[8]", "evaluation.test=false"]
    for steps in ([None], [30, None]):
        for last in steps:
            name = folder / f"{tasks}-{len(steps)}"
            train_here(name, *words, "resume=auto", *([f"trainer.max_steps={last}"] if last else []))
    assert final_bytes(folder / f"{tasks}-1") == final_bytes(folder / f"{tasks}-2")
    run = folder / f"{tasks}-1"
    export = exported(run, folder / f"{tasks}-export", "judgement=ignore")  # in so few steps it learns little
    for label, (p, _) in predicted(folder, export).items():
        assert p.std() > 1e-3
        np.testing.assert_allclose(p, predicted(folder, run)[label][0], rtol=0, atol=1e-6)


def test_python_gives_a_column_for_each_label(folder: Path, run: Path, export: Path) -> None:
    rows = draw_labelled(ROWS)[0][-50:]
    for path in (run, export):
        model = load(path)
        scores = model.predict(rows.select(["age", "shop", "user"]))
        assert model.labels == [*LABELS]
        assert scores.shape == (50, 3)
        expected = pq.read_table(folder / "run-test.parquet")[-50:]
        columns = [expected[name].to_numpy() for name in ("score", "score_order", "score_like")]
        np.testing.assert_allclose(scores, np.stack(columns, axis=1), rtol=0, atol=1e-6)
        assert model.predict(rows[:0].select(["age", "shop", "user"])).shape == (0, 3)


def test_the_server_answers_with_every_label(folder: Path, run: Path, export: Path) -> None:
    served = open_served(export)
    rows = draw_labelled(ROWS)[0][-5:].select(["age", "shop", "user"]).to_pylist()
    requests = [rows, [{**rows[0], "age": "old"}]]
    good, bad = served.score([served.requests.read(body_of(request), 64) for request in requests])
    assert isinstance(bad, RequestError)
    assert not isinstance(good, RequestError)
    assert [*good] == [*LABELS]
    expected = load(run).predict(rows)
    np.testing.assert_allclose(np.array([*good.values()]).T, expected, rtol=0, atol=1e-6)
