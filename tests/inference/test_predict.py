"""dlrm-predict: raw logs in any form and the dataset made of them have the same scores, also after an interruption."""

import gzip
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.export import ExportConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.inference.predict.scores_file import ScoresFile
from dlrm_app.inference.problems import check_export, check_predict
from tests.commands import Typed, command, succeed
from tests.composed import compose_config
from tests.inference.conftest import predicted
from tests.inference.shop import HEADER, NUM_TEST, Row, draw_rows, write_csv
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import run as preprocess
from tests.refusals import find_problem, refused
from tests.small_run import evaluate_here, train_here


def same_scores(table: pa.Table, expected: pa.Table) -> bool:
    return table.column("score").to_pylist() == expected.column("score").to_pylist()


def test_a_datasets_rows_name_their_shard(expected: pa.Table) -> None:
    assert expected.column_names == ["score", "label", "shard", "row"]
    assert set(expected.column("shard").to_pylist()) == {"test/part-00000.parquet"}
    assert expected.column("row").to_pylist() == list(range(NUM_TEST))


def test_raw_lines_get_the_datasets_scores_and_their_lines(
    shop: Path, expected: pa.Table, tmp_path: Path
) -> None:
    table = predicted(tmp_path / "scores.parquet", f"model={shop}/export", f"input={shop}/test.csv")
    assert same_scores(table, expected)
    assert table.column("label").to_pylist() == expected.column("label").to_pylist()
    assert table.column("line").to_pylist() == list(range(2, NUM_TEST + 2))  # behind the header
    assert set(table.column("file").to_pylist()) == {f"{shop}/test.csv"}


def parquet_columns(rows: list[Row]) -> dict[str, pa.Array]:
    """The rows as pandas has them, in another order of columns."""
    return {
        "user": pa.array([row[4] or None for row in rows]).dictionary_encode(),
        "hour": pa.array([None if row[1] == "" else float(row[1]) for row in rows]),
        "price": pa.array([None if row[2] == "" else row[2] for row in rows], pa.float64()),
        "last_items": pa.array([row[5].split("|") if row[5] else [] for row in rows], pa.list_(pa.string())),
        "clicked": pa.array([bool(row[0]) for row in rows]),
        "item": pa.array([row[6] or None for row in rows]),
        "shown_at": pa.array([date.fromisoformat(row[7]) if row[7] else None for row in rows]),
    }


def test_gzip_and_parquet_have_the_same_scores(shop: Path, expected: pa.Table, tmp_path: Path) -> None:
    text = (shop / "test.csv").read_bytes()
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress(text))
    columns = parquet_columns(draw_rows()[-NUM_TEST:])
    pq.write_table(pa.table(columns), tmp_path / "test.parquet", row_group_size=100)
    for name in ("test.csv.gz", "test.parquet"):
        table = predicted(
            tmp_path / f"{name}.scores.parquet", f"model={shop}/export", f"input={tmp_path}/{name}"
        )
        assert same_scores(table, expected), name
        assert table.column("label").to_pylist() == expected.column("label").to_pylist()
    assert table.column("line").to_pylist() == list(range(1, NUM_TEST + 1))  # Parquet has no header


def test_columns_are_found_by_the_names_of_the_header(shop: Path, expected: pa.Table, tmp_path: Path) -> None:
    order = [5, 7, 2, 0, 4, 1, 6]
    rows = [[*(row[place] for place in order), "more"] for row in draw_rows()[-NUM_TEST:]]
    path = write_csv(tmp_path / "test.csv", rows, [*(HEADER[place] for place in order), "page"])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    table = predicted(tmp_path / "scores.parquet", f"model={shop}/export", f"input={path}")
    assert same_scores(table, expected)
    assert table.column("label").to_pylist() == expected.column("label").to_pylist()


def test_files_that_are_not_what_the_model_reads_are_refused(shop: Path, tmp_path: Path) -> None:
    """As by dlrm-preprocess: tests/logs/test_beginning.py has all faults."""
    rows = draw_rows()[-NUM_TEST:]
    unlabelled = write_csv(tmp_path / "unlabelled.csv", [row[1:] for row in rows], HEADER[1:]).read_bytes()
    keys = [f"model={shop}/export", f"input={tmp_path}/given"]
    nameless = "lacks the columns hour, ..."
    for given, more, rule in (
        (unlabelled.partition(b"\n")[2], [], nameless),
        (unlabelled, ["labels=true"], "lacks the columns clicked..."),
    ):
        (tmp_path / "given").write_bytes(given)
        with refused(ConfigError, f"{tmp_path}/given", rule):
            predicted(tmp_path / "scores.parquet", *keys, *more)


def test_columns_of_parquet_go_along_with_their_row(shop: Path, expected: pa.Table, tmp_path: Path) -> None:
    rows = draw_rows()[-NUM_TEST:]
    ids = [f"request {number}" for number in range(NUM_TEST)]
    columns = {"id": pa.array(ids), **parquet_columns(rows)}
    columns["clicked"] = pa.array([7 if number == 3 else row[0] for number, row in enumerate(rows)])
    columns["last_items"] = pa.array([row[5] for row in rows])  # as text, between separators
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=64)
    keys = (f"model={shop}/export", f"input={tmp_path}/rows.parquet", "rejects.max_fraction=0.1")
    table = predicted(tmp_path / "scores.parquet", *keys, "keep=[id,user]")
    kept = [number for number in range(NUM_TEST) if number != 3]
    assert table.column("id").to_pylist() == [ids[number] for number in kept]
    assert table.column("user").to_pylist() == [rows[number][4] or None for number in kept]
    assert table.column("score").to_pylist() == expected.column("score").take(pa.array(kept)).to_pylist()
    with refused(ConfigError, "keep=colour", "is not a column of .../rows.parquet"):
        predicted(tmp_path / "other.parquet", *keys, "keep=[colour]")
    with refused(ConfigError, "keep=['id']", "is for Parquet, .../test.csv is text"):
        predicted(tmp_path / "other.parquet", keys[0], f"input={shop}/test.csv", "keep=[id]")


def test_rows_without_a_label_have_the_same_scores(shop: Path, expected: pa.Table, tmp_path: Path) -> None:
    rows = [row[1:] for row in draw_rows()[-NUM_TEST:]]
    path = write_csv(tmp_path / "today.csv", rows, HEADER[1:])
    table = predicted(tmp_path / "scores.parquet", f"model={shop}/export", f"input={path}")
    assert table.column_names == ["score", "file", "line"]
    assert same_scores(table, expected)


def test_a_checkpoint_scores_as_its_export(shop: Path, expected: pa.Table, tmp_path: Path) -> None:
    table = predicted(tmp_path / "scores.parquet", f"model={shop}/run", f"input={shop}/test.csv")
    np.testing.assert_allclose(
        table.column("score").to_numpy(), expected.column("score").to_numpy(), atol=1e-6
    )


def test_metrics_of_both_commands_are_sklearns_of_the_scores(shop: Path, tmp_path: Path) -> None:
    scores = predicted(tmp_path / "s.parquet", f"model={shop}/run", f"data.path={shop}/dataset")
    labels, probabilities = scores.column("label").to_numpy(), scores.column("score").to_numpy()
    expected_loss = log_loss(labels, probabilities.astype(np.float64))
    keys = [f"checkpoint={shop}/run", f"scores=[{tmp_path}/s.parquet]", "split=test"]
    for found in evaluate_here(*keys).models:
        assert found.metrics["num_samples"] == NUM_TEST == len(scores)
        assert found.metrics["auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-9)
        assert found.metrics["logloss"] == pytest.approx(expected_loss, rel=1e-6)


def cut_in_files(shop: Path, folder: Path) -> str:
    """The test rows as six files; their glob."""
    rows = draw_rows()[-NUM_TEST:]
    folder.mkdir()
    for number in range(6):
        write_csv(folder / f"part{number}.csv", rows[40 * number : 40 * number + 40])
    return f"{folder}/part*.csv"


def test_an_interrupted_command_resumes_to_the_same_file(
    shop: Path, expected: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"model={shop}/export", f"input={cut_in_files(shop, tmp_path / 'days')}", "batch_size=16"]
    assert same_scores(predicted(tmp_path / "whole.parquet", *keys), expected)
    scored: list[str] = []
    write, most = ScoresFile.write, 4

    def interrupted(scores: ScoresFile, name: str, *rest: Any) -> None:
        if len(scored) == most:
            raise KeyboardInterrupt
        scored.append(name)
        write(scores, name, *rest)

    monkeypatch.setattr(ScoresFile, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predicted(tmp_path / "scores.parquet", *keys)
    assert not (tmp_path / "scores.parquet").exists()
    with refused(DlrmError, "...scores.parquet.parts", "...with another batch_size"):
        predicted(tmp_path / "scores.parquet", *keys[:2], "batch_size=8")
    most = 6
    predicted(tmp_path / "scores.parquet", *keys)
    assert len(scored) == len(set(scored)) == 6
    assert (tmp_path / "scores.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not (tmp_path / "scores.parquet.parts").exists()


def test_an_interrupted_command_keeps_the_tables_version(
    shop: Path, expected: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake writes and lists Delta tables")
    monkeypatch.chdir(tmp_path)
    rows = csv.read_csv(shop / "test.csv")
    for start in range(0, NUM_TEST, 100):
        deltalake.write_deltalake("clicks", rows.slice(start, 100), mode="append")
    keys = [f"model={shop}/export", "input=delta://clicks"]
    write = ScoresFile.write

    def interrupt(scores: ScoresFile, *part: Any) -> None:
        write(scores, *part)
        raise KeyboardInterrupt

    monkeypatch.setattr(ScoresFile, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        predicted(tmp_path / "scores.parquet", *keys)
    monkeypatch.setattr(ScoresFile, "write", write)
    deltalake.write_deltalake("clicks", rows, mode="append")
    assert same_scores(predicted(tmp_path / "scores.parquet", *keys), expected)
    assert len(predicted(tmp_path / "newest.parquet", *keys)) == 2 * NUM_TEST


@pytest.mark.long
def test_two_processes_write_the_file_of_one(shop: Path, tmp_path: Path) -> None:
    keys = [f"model={shop}/export", f"input={cut_in_files(shop, tmp_path / 'days')}", "threads=1"]
    succeed(command("predict", *keys, "output=one.parquet"), tmp_path)
    succeed(command("predict", *keys, "output=two.parquet", ranks=2), tmp_path)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_malformed_lines_are_named_and_too_many_are_refused(
    shop: Path, expected: pa.Table, tmp_path: Path
) -> None:
    lines = (shop / "test.csv").read_text().splitlines()
    lines.insert(3, "1,noon,3,4,u5,,,")
    (tmp_path / "test.csv").write_text("\n".join(lines))
    keys = [f"model={shop}/export", f"input={tmp_path}/test.csv"]
    rule = "allows fewer malformed lines than 1 of 241"
    with refused(DataError, "rejects.max_fraction=...", rule) as caught:
        predicted(tmp_path / "scores.parquet", *keys)
    reason = "is malformed: hour is 'noon', must be a whole number..."
    assert find_problem(caught.value, f"{tmp_path}/test.csv:4", reason)
    assert not (tmp_path / "scores.parquet").exists()
    table = predicted(tmp_path / "scores.parquet", *keys, "rejects.max_fraction=0.1")
    assert same_scores(table, expected)
    assert table.column("line").to_pylist() == [2, 3, *range(5, NUM_TEST + 3)]


def test_a_dataset_that_is_encoded_otherwise_is_refused(shop: Path, tmp_path: Path) -> None:
    keys = [
        f"dataset={shop}/shop.yaml",
        f"input.test={shop}/test.csv",
        "encoding=hash",
        "encoding.num_embeddings=50",
    ]
    preprocess(tmp_path / "other", *keys)
    with refused(DataError, "user", "has encoding ..."):
        predicted(tmp_path / "scores.parquet", f"model={shop}/export", f"data.path={tmp_path}/other")
    with refused(DataError, ".../dataset", "has no val split, only train, test"):
        predicted(tmp_path / "s.parquet", f"model={shop}/export", f"data.path={shop}/dataset", "split=val")


def test_a_file_without_rows_has_no_scores(shop: Path, tmp_path: Path) -> None:
    schema = pa.schema([("hour", pa.int64()), ("price", pa.float64()), ("user", pa.string())])
    schema = schema.append(pa.field("last_items", pa.list_(pa.string())))
    schema = schema.append(pa.field("item", pa.string())).append(pa.field("shown_at", pa.timestamp("us")))
    pq.ParquetWriter(tmp_path / "none.parquet", schema).close()  # no row group either
    table = predicted(tmp_path / "scores.parquet", f"model={shop}/export", f"input={tmp_path}/none.parquet")
    assert (len(table), table.column_names) == (0, ["score", "file", "line"])


def test_a_file_whose_rows_are_all_malformed_is_refused_by_its_rows(shop: Path, tmp_path: Path) -> None:
    columns = parquet_columns(draw_rows()[-NUM_TEST:])
    pq.write_table(pa.table({**columns, "clicked": pa.array([7] * NUM_TEST)}), tmp_path / "rows.parquet")
    keys = [f"model={shop}/export", f"input={tmp_path}/rows.parquet"]
    rule = f"allows fewer malformed lines than {NUM_TEST} of {NUM_TEST}"
    with refused(DataError, "rejects.max_fraction=...", rule):
        predicted(tmp_path / "scores.parquet", *keys)
    table = predicted(tmp_path / "scores.parquet", *keys, "rejects.max_fraction=1")
    assert len(table) == 0


def test_the_encoding_of_an_export_preprocesses_new_days(
    shop: Path, expected: pa.Table, tmp_path: Path
) -> None:
    keys = [f"dataset={shop}/shop.yaml", f"input.test={shop}/test.csv", "encoding=from_dataset"]
    preprocess(tmp_path / "days", *keys, f"encoding.path={shop}/export/encoding")
    table = predicted(tmp_path / "scores.parquet", f"model={shop}/export", f"data.path={tmp_path}/days")
    assert same_scores(table, expected)


def test_impossible_settings_are_refused_at_once(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = typed("predict", "model=nowhere", "output=scores.csv", "batch_size=0")
    assert code == 2
    for message in (
        "model=nowhere does not exist",
        "raw logs, or data.path=DATASET with split=",
        ".parquet",
        "batch_size must be at least 1 and at most",
    ):
        assert message in text
    keys = [f"model={tmp_path}", f"output={tmp_path}/s.parquet"]
    for words, key, rule in (
        (["data.path=x", "keep=[id]"], "keep", "is for raw logs..."),
        (["data.path=x"], "x", "does not exist"),
        (["data.path=x", "rejects.max_fraction=0.1"], "rejects.max_fraction", "is for raw logs..."),
        (["input=nothing.tsv"], "input=nothing.tsv", "does not exist (..."),
        (["input=nothing.tsv", "split=val"], "split", "is for a dataset (data.path=)"),
    ):
        with refused(ConfigError, key, rule, value="val" if key == "split" else "..."):
            compose_config("predict", PredictConfig, [*keys, *words], check_predict)
    monkeypatch.setenv("WORLD_SIZE", "2")
    export = compose_config("export", ExportConfig, [f"checkpoint={tmp_path}", f"output={tmp_path}/e"])
    with refused(ConfigError, "dlrm-export", "is one process for any number of training ranks"):
        check_export(export)


@pytest.mark.slow
def test_raw_rows_whose_clicks_are_in_targets_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seed in {"train": 0, "new": 1}.items():
        (tmp_path / f"{name}.tsv").write_bytes(make_clicks(4000, seed))
    keys = ["encoding.num_embeddings=10000", "dense.target_columns=[cat_0, cat_3, cat_9]"]
    preprocess(tmp_path / "dataset", f"input.train={tmp_path}/train.tsv", *keys)
    train_here(tmp_path / "run", f"data.path={tmp_path}/dataset", "trainer.max_steps=1")
    for name in ("new", "train"):
        caplog.clear()
        given = [f"model={tmp_path}/run", f"input={tmp_path}/{name}.tsv"]
        predicted(tmp_path / f"{name}.parquet", *given)
        assert ("contain their own clicks" in caplog.text) == (name == "train")
