"""Weights of lists' elements from the log to scores: training, evaluation, predictions, exports, requests."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dlrm_app import load
from dlrm_app.api.auto_recipe import choose_recipe
from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.inference.exported_model import open_export
from dlrm_app.inference.predict.predict import predict
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.inference.serve.request import RequestError
from dlrm_app.inference.serve.scoring import open_served
from dlrm_app.loader.batch import EvalBatches
from tests.composed import compose_config
from tests.dwell_log import COLUMNS, NUM_ITEMS, describe, draw_rows, write_parquet
from tests.inference.conftest import export_here
from tests.inference.mixed import CART, TABLES
from tests.inference.shop import body_of
from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.preprocessing.running import table_of
from tests.ranks import train_on_ranks
from tests.refusals import refused
from tests.small_run import SMALL, evaluate_here, events, final_bytes, losses, train_here

COMMON = [
    *SMALL,
    "report.enabled=false",
    "trainer.epochs=2",
    "optimizer.dense.lr=0.01",
    "optimizer.sparse.lr=0.3",
]
ROWS, TEST = 6000, 1200
SHARED = ["encoding=vocab", "encoding.shared=[[item,seen]]"]


def preprocess(folder: Path, log: str, output: str, *more: str) -> None:
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/{log}", "split.val=0.2", "split.test=0.2"]
    preprocess_here(folder / output, *given, *SHARED, *more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dwell")
    describe(path)
    write_csv(path / "log.csv", draw_rows(ROWS))
    write_csv(path / "test.csv", draw_rows(ROWS)[ROWS - TEST :])
    write_parquet(path / "test.parquet", draw_rows(ROWS)[ROWS - TEST :])
    preprocess(path, "log.csv", "data")
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train_here(folder / "run", f"data.path={folder}/data", *COMMON)
    return folder / "run"


def scores(model: Path, output: Path, *given: str) -> pa.Table:
    if not output.exists():
        words = [f"model={model}", f"output={output}", "threads=1", *given]
        predict(compose_config("predict", PredictConfig, words))
    return pq.read_table(output)


def test_batches_have_the_weights_of_the_log(folder: Path) -> None:
    """Whatever the order of features; 1 for ids without weights; none in rows of padding."""
    manifest = read_manifest(folder / "data")
    stored = table_of(manifest, "test")
    with EvalBatches(manifest, "test", ["seen", "item"], batch_size=700) as batches:
        found = [batch.sparse_features for batch in batches]
    flat = [torch.cat([part[name].weights() for part in found]).tolist() for name in ("seen", "item")]
    assert flat[0] == stored["dwell"].combine_chunks().flatten().to_pylist()
    assert flat[1] == [1.0] * TEST
    ids = torch.cat([part["seen"].values() for part in found]).tolist()
    assert ids == stored["seen"].combine_chunks().flatten().to_pylist()


@pytest.mark.slow
def test_weights_of_1_train_like_no_weights(folder: Path) -> None:
    rows = draw_rows(ROWS)
    ones = pa.array([[1.0] * len(row) for row in rows["dwell"].to_pylist()], pa.list_(pa.float32()))
    write_csv(folder / "ones.csv", rows.set_column(4, "dwell", ones))
    preprocess(folder, "ones.csv", "ones")
    train_here(folder / "of_ones", f"data.path={folder}/ones", *COMMON)
    describe(folder, columns=[*COLUMNS[:-1], "{name: dwell, role: ignore}"])
    preprocess(folder, "ones.csv", "without")
    describe(folder)
    train_here(folder / "of_none", f"data.path={folder}/without", *COMMON)
    np.testing.assert_allclose(losses(folder / "of_ones"), losses(folder / "of_none"), rtol=1e-6)
    assert events(folder / "of_ones", "eval")[-1]["auc"] == pytest.approx(
        events(folder / "of_none", "eval")[-1]["auc"], abs=1e-6
    )


def test_dwell_times_are_learnt(folder: Path, run: Path) -> None:
    """The planted clicks depend on them: without them the AUC is far lower."""
    describe(folder, columns=[*COLUMNS[:-1], "{name: dwell, role: ignore}"])
    preprocess(folder, "log.csv", "unweighted")
    describe(folder)
    train_here(folder / "plain", f"data.path={folder}/unweighted", *COMMON)
    with_them, without = (events(each, "eval")[-1]["auc"] for each in (run, folder / "plain"))
    assert with_them > without + 0.03


def test_evaluation_gives_the_metrics_of_the_run(folder: Path, run: Path) -> None:
    found = evaluate_here(f"checkpoint={run}").models[0].metrics
    (in_run,) = [event for event in events(run, "eval") if event["split"] == "test"]
    assert in_run["auc"] == pytest.approx(found["auc"], rel=1e-9)
    table = scores(run, folder / "dataset.parquet", f"data.path={folder}/data", "split=test")
    clicks = table_of(read_manifest(folder / "data"), "test")["clicked"].to_numpy()
    assert found["auc"] == pytest.approx(roc_auc_score(clicks, table["score"].to_numpy()), abs=1e-6)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_raw_rows_score_as_those_of_the_dataset(folder: Path, run: Path, form: str) -> None:
    table = scores(run, folder / "dataset.parquet", f"data.path={folder}/data", "split=test")
    raw = scores(run, folder / f"raw_{form}.parquet", f"input={folder}/test.{form}")
    assert raw["score"].to_pylist() == table["score"].to_pylist()


def test_python_scores_as_the_command_does(folder: Path, run: Path) -> None:
    """Rows, and the torch module on a batch; a row without its weights is refused."""
    model, rows = load(run), draw_rows(ROWS)[ROWS - TEST :].drop_columns(["clicked"])
    expected = scores(run, folder / "dataset.parquet", f"data.path={folder}/data", "split=test")
    np.testing.assert_allclose(model.predict(rows), expected["score"].to_numpy(), atol=1e-6)
    assert model.columns == ["age", "item", "seen", "dwell"]
    with pytest.raises(DataError, match="dwell has 0 elements, seen has 2: each needs its weight"):
        model.predict({"age": 30, "item": 3, "seen": [1, 2], "dwell": None})
    with EvalBatches(model.manifest, "test", model.scorer.features, batch_size=TEST) as batches:
        (batch,) = batches
    logits = model.module(batch.dense_features, batch.sparse_features).squeeze(1)
    np.testing.assert_allclose(logits.sigmoid().detach().numpy(), expected["score"].to_numpy(), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("model.ensemble_size=2",), ("model=concat", "model.bottom_mlp=[]")])
def test_two_ranks_train_as_one_does(folder: Path, more: tuple[str, ...]) -> None:
    keys = [f"data.path={folder}/data", *COMMON, "trainer.epochs=1", "trainer.max_steps=12", *more]
    outputs = [folder / f"{number}-{len(more)}-{more[:1]}" for number in (1, 2)]
    for number, output in zip((1, 2), outputs, strict=True):
        train_on_ranks(number, *keys, f"output={output}")
    assert losses(outputs[1]) == pytest.approx(losses(outputs[0]), rel=1e-5)


def test_a_resumed_run_ends_as_one_that_never_stopped(folder: Path) -> None:
    keys = [f"data.path={folder}/data", *COMMON, "trainer.epochs=1"]
    train_here(folder / "whole", *keys)
    train_here(folder / "first", *keys, "trainer.max_steps=9", "checkpoint.every_steps=9")
    train_here(folder / "first", *keys, "resume=auto")
    assert final_bytes(folder / "first") == final_bytes(folder / "whole")


def test_exports_give_the_trained_models_scores(folder: Path, run: Path) -> None:
    """In fp32 and int8; so do requests to it. Rows without their weights are answered with the reason."""
    for kind, far in (("fp32", 1e-6), ("int8", 0.05)):
        record = export_here(
            f"checkpoint={run}", "format=torchscript", f"quantize={kind}", f"output={folder}/{kind}"
        )
        assert record.proofs[0].max_difference < far
        assert [feature.weighted for feature in record.features] == [False, True]
    served = open_served(folder / "fp32")
    rows = draw_rows(ROWS)[ROWS - TEST :].drop_columns(["clicked"]).to_pylist()[:64]
    (answer,) = served.score([served.requests.read(body_of(rows), 64)])
    expected = scores(run, folder / "dataset.parquet", f"data.path={folder}/data", "split=test")
    assert isinstance(answer, dict)
    (answered,) = answer.values()
    np.testing.assert_allclose(answered, expected["score"].to_pylist()[:64], atol=1e-6)
    del rows[1]["dwell"], rows[2]["seen"]
    (wrong,) = served.score([served.requests.read(body_of(rows[:2]), 64)])
    assert isinstance(wrong, RequestError)
    assert "dwell has 0 elements" in str(wrong)
    raw = scores(folder / "fp32", folder / "exported.parquet", f"input={folder}/test.csv")
    np.testing.assert_allclose(raw["score"].to_numpy(), expected["score"].to_numpy(), atol=1e-6)


def test_other_element_weights_are_another_dataset(folder: Path, run: Path) -> None:
    """A model that learnt them does not read rows without them, nor the other way round."""
    describe(folder, columns=[*COLUMNS[:-1], "{name: dwell, role: ignore}"])
    preprocess(folder, "log.csv", "bare")
    describe(folder)
    with refused(DataError, "seen", "has the element weights none, the model reads dwell"):
        evaluate_here(f"checkpoint={run}", f"data.path={folder}/bare")
    train_here(folder / "knows_none", f"data.path={folder}/bare", *COMMON, "trainer.max_steps=2")
    with refused(DataError, "seen", "has the element weights dwell, the model reads none"):
        evaluate_here(f"checkpoint={folder}/knows_none", f"data.path={folder}/data")


@pytest.mark.parametrize("pooling", ["mean", "{attention: item}"])
def test_weights_are_for_sums(folder: Path, pooling: str) -> None:
    spec = f"{{name: t, rows: 60, features: [item, seen], pooling: {pooling}}}"
    with refused(
        ConfigError,
        "table t",
        "has pooling ..., and the elements of seen have weights...",
        "give it pooling: sum...",
    ):
        train_here(
            folder / "refused",
            f"data.path={folder}/data",
            *COMMON,
            "tables.from_dataset=false",
            f"tables.specs=[{spec}]",
        )


def test_attention_of_all_tables_is_for_lists_without_weights(folder: Path) -> None:
    with refused(
        ConfigError,
        "tables.pooling=attention",
        "finds no list that has one vocabulary with a column to attend to...",
    ):
        train_here(folder / "attending", f"data.path={folder}/data", *COMMON, "tables.pooling=attention")
    assert "tables.pooling" not in choose_recipe(read_manifest(folder / "data"), 64)[1]


def test_wrong_weights_of_an_export_are_refused(folder: Path, run: Path) -> None:
    export_here(f"checkpoint={run}", "format=torchscript", f"output={folder}/inputs")
    export = open_export(folder / "inputs")
    with EvalBatches(read_manifest(folder / "data"), "test", export.features, batch_size=8) as batches:
        inputs = to_inputs(next(iter(batches)))
    for wrong in (inputs[:3], (*inputs[:3], inputs[3][1:]), (*inputs[:3], -inputs[3])):
        with pytest.raises(DataError, match=r"weights of values|numbers from 0 on"):
            export.score(wrong)


@pytest.mark.long
def test_all_that_rows_may_have_goes_together(tmp_path: Path) -> None:
    """Weights of rows and of elements, a list that attends, two labels, sampled negatives, an ensemble."""
    random = np.random.default_rng(1)
    rows = draw_rows(4000)
    clicked = rows["clicked"].to_numpy()
    bought = [None if random.random() < 0.1 else int(c and random.random() < 0.3) for c in clicked]
    cart = [random.integers(0, NUM_ITEMS, random.integers(0, 3)) for _ in clicked]
    rows = rows.append_column("bought", pa.array(bought))
    rows = rows.append_column("importance", pa.array(np.round(random.random(len(rows)), 3)))
    rows = rows.append_column("cart", pa.array(cart, pa.list_(pa.int64())))
    labels = "labels: [clicked, {bought: {given: clicked}}]"
    more = ["{name: bought, role: label}", "{name: importance, role: weight}", CART]
    describe(tmp_path, labels, columns=[*COLUMNS, *more])
    write_csv(tmp_path / "log.csv", rows)
    write_csv(tmp_path / "test.csv", rows[-800:])
    given = [f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.csv", "split.test=0.2"]
    settings = ["encoding=vocab", "encoding.min_count=1", "encoding.shared=[[item,cart]]"]
    preprocess_here(tmp_path / "data", *given, *settings, "sampling.negatives=0.5")
    (tmp_path / "tables.yaml").write_text(TABLES)
    keys = [f"data.path={tmp_path}/data", f"tables={tmp_path}/tables.yaml", "model.ensemble_size=2"]
    common = [key for key in COMMON if not key.startswith("tables")]
    for number in (1, 2):
        train_on_ranks(number, *common, *keys, "trainer.max_steps=20", f"output={tmp_path}/run{number}")
    assert losses(tmp_path / "run2") == pytest.approx(losses(tmp_path / "run1"), rel=1e-5)
    run = tmp_path / "run1"
    export_here(f"checkpoint={run}", "format=torchscript", f"output={tmp_path}/export")
    of_rows = scores(run, tmp_path / "rows.parquet", f"input={tmp_path}/test.csv")
    names = [name for name in of_rows.column_names if name.startswith("score")]
    assert len(names) == 2
    others = {
        "dataset": scores(run, tmp_path / "split.parquet", f"data.path={tmp_path}/data", "split=test"),
        "export": scores(tmp_path / "export", tmp_path / "export.parquet", f"input={tmp_path}/test.csv"),
    }
    for found in others.values():
        for name in names:
            np.testing.assert_allclose(found[name].to_numpy(), of_rows[name].to_numpy(), atol=1e-6)
