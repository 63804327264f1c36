"""Vectors from the log to scores: training, resumes, evaluation, predictions, exports, requests, and newer vectors."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app import load
from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.inference.predict.predict import predict
from dlrm_app.inference.record import read_delta, read_export
from dlrm_app.inference.serve.request import RequestError
from dlrm_app.inference.serve.scoring import open_served
from tests.composed import compose_config
from tests.inference.conftest import export_here
from tests.inference.shop import body_of
from tests.make_log import describe, write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.ranks import train_on_ranks
from tests.refusals import refused
from tests.small_run import SMALL, evaluate_here, events, final_bytes, losses, train_here

ROWS, TEST, NUM_ITEMS, KNOWN, WIDTH, SIZE = 3000, 600, 60, 50, 10, 6
COLUMNS = [
    "{name: clicked, role: label}",
    "{name: age, role: dense, kind: integer}",
    "{name: item, role: sparse, kind: string}",
    '{name: seen, role: sparse, kind: string, separator: "|"}',
    '{name: query, role: vector, size: 6, separator: "|"}',
]
COMMON = [*SMALL, "report.enabled=false", "trainer.epochs=1", "optimizer.dense.lr=0.02"]


def vectors(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(NUM_ITEMS, WIDTH)).astype(np.float32)


def draw_rows(num_rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Clicks that depend on the item's vector and the query's; a tenth of the queries are missing."""
    random = np.random.default_rng(seed)
    item = random.integers(0, NUM_ITEMS, num_rows)
    seen = [random.integers(0, NUM_ITEMS, size) for size in random.integers(0, 4, num_rows)]
    query = random.normal(size=(num_rows, SIZE)).astype(np.float32)
    logits = 1.5 * vectors()[item, :4].sum(1) + 1.5 * query[:, 0]
    queries = [None if random.random() < 0.1 else row for row in query.tolist()]
    return pa.table(
        {
            "clicked": (random.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.int64),
            "age": random.integers(18, 70, num_rows),
            "item": [f"i{number}" for number in item],
            "seen": [[f"i{number}" for number in each] for each in seen],
            "query": pa.array(queries, pa.list_(pa.float32())),
        }
    )


def write_items(path: Path, known: int = KNOWN, seed: int = 3) -> None:
    names = [f"i{number}" for number in range(known)]
    pq.write_table(pa.table({"value": names, "vector": [*vectors(seed)[:known]]}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    described = describe(path, COLUMNS)
    file = f"file: {path}/items.parquet"
    derived = [f"  - {{name: {name}_text, kind: vectors, of: {name}, {file}}}" for name in ("item", "seen")]
    described.write_text(described.read_text() + "\n".join(["derived:", *derived]) + "\n")
    write_items(path / "items.parquet")
    write_csv(path / "log.csv", draw_rows())
    write_csv(path / "test.csv", draw_rows()[ROWS - TEST :])
    pq.write_table(draw_rows()[ROWS - TEST :], path / "test.parquet")
    preprocess(path, "data", "encoding=vocab", "encoding.day=1")
    return path


def preprocess(folder: Path, output: str, *more: str) -> Path:
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/log.csv", "split.val=0.2", "split.test=0.2"]
    preprocess_here(folder / output, *given, *more)
    return folder / output


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train_here(folder / "run", f"data.path={folder}/data", *COMMON, "trainer.epochs=3")
    return folder / "run"


def scores(model: Path, output: Path, *given: str) -> np.ndarray:
    if not output.exists():
        words = [f"model={model}", f"output={output}", "threads=1", *given]
        predict(compose_config("predict", PredictConfig, words))
    return pq.read_table(output)["score"].to_numpy()


def expected(folder: Path, run: Path) -> np.ndarray:
    return scores(run, folder / "dataset.parquet", f"data.path={folder}/data", "split=test")


def test_clicks_are_learnt_from_vectors(folder: Path, run: Path) -> None:
    """Items without a vector and rows without a query are scored too; evaluation gives the run's metrics."""
    found = evaluate_here(f"checkpoint={run}").models[0].metrics
    (in_run,) = [event for event in events(run, "eval") if event["split"] == "test"]
    assert in_run["auc"] == pytest.approx(found["auc"], rel=1e-9)
    assert found["auc"] > 0.8


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_raw_rows_score_as_those_of_the_dataset(folder: Path, run: Path, form: str) -> None:
    raw = scores(run, folder / f"raw_{form}.parquet", f"input={folder}/test.{form}")
    assert np.array_equal(raw, expected(folder, run))


def test_python_scores_as_the_command_does(folder: Path, run: Path) -> None:
    model, rows = load(run), draw_rows()[ROWS - TEST :].drop_columns(["clicked"])
    np.testing.assert_allclose(model.predict(rows), expected(folder, run), atol=1e-6)
    np.testing.assert_allclose(model.predict(rows.to_pylist()[:9]), expected(folder, run)[:9], atol=1e-6)
    assert model.columns == ["age", "item", "seen", "query"]
    with pytest.raises(DataError, match="query has 2 numbers, its size is 6"):
        model.predict({"age": 30, "item": "i1", "seen": [], "query": [1.0, 2.0]})


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), marks=pytest.mark.long),
        ("model.ensemble_size=2",),
        ("model=concat", "model.bottom_mlp=[]"),
    ],
)
def test_two_ranks_train_as_one_does(folder: Path, more: tuple[str, ...]) -> None:
    keys = [f"data.path={folder}/data", *COMMON, "trainer.max_steps=12", *more]
    outputs = [folder / f"{number}-{len(more)}-{more[:1]}" for number in (1, 2)]
    for number, output in zip((1, 2), outputs, strict=True):
        train_on_ranks(number, *keys, f"output={output}")
    assert losses(outputs[1]) == pytest.approx(losses(outputs[0]), rel=1e-5)


def test_a_resumed_run_ends_as_one_that_never_stopped(folder: Path) -> None:
    keys = [f"data.path={folder}/data", *COMMON]
    train_here(folder / "whole", *keys)
    train_here(folder / "first", *keys, "trainer.max_steps=7", "checkpoint.every_steps=7")
    train_here(folder / "first", *keys, "resume=auto")
    assert final_bytes(folder / "first") == final_bytes(folder / "whole")


def test_exports_give_the_trained_models_scores(folder: Path, run: Path) -> None:
    """In fp32 and int8, in one piece and in shards; so do requests. The dataset's vectors are not copied beside."""
    for name, words, far in (
        ("fp32", ["quantize=fp32"], 1e-6),
        ("int8", ["quantize=int8"], 0.05),
        ("shards", ["quantize=int8", "shards=2"], 0.05),
    ):
        record = export_here(f"checkpoint={run}", "format=torchscript", *words, f"output={folder}/{name}")
        assert record.proofs[0].max_difference < far
        assert record.dense == ["age", *(f"query[{place}]" for place in range(SIZE))]
    types = {table.name: table.type for table in read_export(folder / "fp32").tables}
    assert types["t_item_text"] == "fp16"
    assert not (folder / "fp32" / "encoding" / "vectors").exists()
    served = open_served(folder / "fp32")
    rows = draw_rows()[ROWS - TEST :].drop_columns(["clicked"]).to_pylist()[:64]
    (answer,) = served.score([served.requests.read(body_of(rows), 64)])
    assert isinstance(answer, dict)
    (answered,) = answer.values()
    np.testing.assert_allclose(answered, expected(folder, run)[:64], atol=1e-6)
    rows[1]["query"] = [1.0]
    (wrong,) = served.score([served.requests.read(body_of(rows[:2]), 64)])
    assert isinstance(wrong, RequestError)
    assert "query has 1 numbers" in str(wrong)


def test_plain_weights_have_the_vectors(folder: Path, run: Path) -> None:
    export_here(f"checkpoint={run}", "format=parquet", f"output={folder}/plain")
    table = pq.read_table(folder / "plain" / "tables" / "t_item_text.parquet").to_pylist()
    by_value = {row["value_seen_text"]: row["vector"][:WIDTH] for row in table}
    assert np.array_equal(by_value["i7"], vectors()[7].astype(np.float16))


def test_vectors_that_did_not_change_cost_a_delta_nothing(folder: Path, run: Path) -> None:
    """After more steps of training, only the other tables have changed."""
    train_here(folder / "more", f"data.path={folder}/data", *COMMON, f"warm_start.checkpoint={run}")
    for name, checkpoint, more in (
        ("before", run, []),
        ("after", folder / "more", [f"since={folder}/before"]),
    ):
        export_here(f"checkpoint={checkpoint}", "format=parquet", *more, f"output={folder}/{name}")
    patched = read_delta(folder / "after").patched
    assert "tables/t_item.parquet" in patched
    assert "tables/t_item_text.parquet" not in patched


def test_a_newer_file_goes_on_from_the_run(folder: Path, run: Path) -> None:
    """Known values keep their ids, and a warm start takes the new vectors."""
    write_items(folder / "items.parquet", NUM_ITEMS, seed=4)
    newer = preprocess(folder, "newer", "encoding=vocab", f"encoding.grow_from={folder}/data")
    write_items(folder / "items.parquet")
    sizes = [
        next(c.num_embeddings for c in read_manifest(each).sparse if c.name == "item_text")
        for each in (folder / "data", newer)
    ]
    assert sizes == [KNOWN + 2, NUM_ITEMS + 2]
    train_here(
        folder / "on", f"data.path={newer}", *COMMON, f"warm_start.checkpoint={run}", "trainer.max_steps=3"
    )
    old = evaluate_here(f"checkpoint={run}", f"data.path={newer}").models[0].metrics
    assert old["auc"] == pytest.approx(evaluate_here(f"checkpoint={run}").models[0].metrics["auc"], abs=1e-9)


def test_vectors_that_have_changed_or_gone_are_refused(folder: Path, run: Path) -> None:
    file = folder / "data" / "vectors" / "item_text.npy"
    kept = folder / "kept.npy"
    shutil.copy(file, kept)
    file.write_bytes(kept.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="has other bytes than were written"):
        evaluate_here(f"checkpoint={run}")
    file.unlink()
    with pytest.raises(DataError, match="is missing"):
        train_here(folder / "none", f"data.path={folder}/data", *COMMON)
    shutil.copy(kept, file)


def test_another_size_of_vectors_is_another_dataset(folder: Path, run: Path) -> None:
    rows = draw_rows()
    cut = [each and each[:5] for each in rows["query"].to_pylist()]
    write_csv(folder / "narrow.csv", rows.set_column(4, "query", pa.array(cut, pa.list_(pa.float32()))))
    text = (folder / "log.yaml").read_text()
    (folder / "narrow.yaml").write_text(text.replace("size: 6", "size: 5"))
    given = [f"dataset={folder}/narrow.yaml", f"input.test={folder}/narrow.csv", "encoding=vocab"]
    preprocess_here(folder / "narrow", *given)
    with refused(DataError, "vectors", "are query of size 5, the model's query of size 6"):
        evaluate_here(f"checkpoint={run}", f"data.path={folder}/narrow", "split=test")


TABLES = {
    "train": ("{name: t, features: [item_text], train: true}", "is for tables of other columns..."),
    "dim": ("{name: t, features: [item_text], dim: 8}", "is 12 in the dataset"),
    "rows": ("{name: t, features: [item_text], rows: 9}", "is 52 in the dataset"),
    "optimizer": (
        "{name: t, features: [item_text], optimizer: {lr: 1}}",
        "is not a key of a table of vectors",
    ),
    "features": ("{name: t, features: [item_text, item]}", "must look up the same vectors"),
}


@pytest.mark.parametrize("key", TABLES)
def test_a_spec_that_vectors_cannot_have_is_refused(folder: Path, key: str) -> None:
    spec, rule = TABLES[key]
    words = ["tables.from_dataset=false", f"tables.specs=[{spec}]"]
    with refused(ConfigError, f"tables.specs (t).{key}", rule):
        train_here(folder / "refused", f"data.path={folder}/data", *COMMON, *words)


def test_frozen_tables_are_for_vectors(folder: Path) -> None:
    spec = "{name: t, features: [item], rows: 99, train: false}"
    words = ["tables.from_dataset=false", f"tables.specs=[{spec}]"]
    with refused(ConfigError, "tables.specs (t).train", "is for tables of columns of kind: vectors"):
        train_here(folder / "refused", f"data.path={folder}/data", *COMMON, *words)
    shared = (
        "[{name: u, rows: 99, features: [item]}, {name: t, features: [item_text, seen_text], pooling: mean}]"
    )
    train_here(
        folder / "by_hand",
        f"data.path={folder}/data",
        *COMMON,
        "tables.from_dataset=false",
        f"tables.specs={shared}",
        "trainer.max_steps=3",
    )
