"""Weights of rows (role: weight): text and Parquet give the same dataset; what is no weight is a rejected row."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.errors import ConfigError
from tests.make_log import write_csv
from tests.preprocessing.running import content, rejects_of, run, table_of
from tests.refusals import refused
from tests.weighted_log import COLUMNS, describe, draw_rows

ROWS = 3000
HASH = ["encoding=hash", "encoding.num_embeddings=100"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    describe(tmp_path)
    write_csv(tmp_path / "log.csv", draw_rows(ROWS)[0])
    return tmp_path


def options(folder: Path, *others: str) -> list[str]:
    return [f"dataset={folder}/log.yaml", *HASH, *others]


def test_weights_are_a_column_beside_the_label(log: Path) -> None:
    rows = draw_rows(ROWS)[0]
    manifest = run(log / "out", *options(log), f"input.train={log}/log.csv", "split.val=0.2")
    assert manifest.weight == "importance"
    tables = {split: table_of(manifest, split) for split in ("train", "val")}
    assert tables["train"].schema.names[:2] == ["clicked", "importance"]
    stored = pa.concat_tables(tables.values())
    assert stored["importance"].to_pylist() == rows["importance"].cast(pa.float32()).to_pylist()
    for split, table in tables.items():
        weights, clicks = (table[name].to_numpy().astype(float) for name in ("importance", "clicked"))
        sums = manifest.splits[split].weights
        assert sums is not None
        assert (sums.all, sums.positives) == pytest.approx((weights.sum(), weights @ clicks), rel=1e-11)
        assert manifest.clicks_and_rows(split) == (sums.positives, sums.all)


def as_strings(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in column.to_pylist()])


STORED: list[Callable[[pa.ChunkedArray], pa.Array]] = [
    lambda column: column,
    as_strings,
    lambda column: as_strings(column).dictionary_encode(),
    lambda column: as_strings(column).cast(pa.decimal128(12, 3)),
]


@pytest.mark.parametrize("store", STORED, ids=["double", "string", "dictionary", "decimal"])
def test_parquet_gives_the_dataset_of_the_text(log: Path, store: Callable[..., pa.Array]) -> None:
    rows = draw_rows(ROWS)[0]
    pq.write_table(rows.set_column(1, "importance", store(rows["importance"])), log / "log.parquet")
    run(log / "text", *options(log), f"input.train={log}/log.csv")
    run(log / "parquet", *options(log), f"input.train={log}/log.parquet")
    assert content(log / "parquet", ["manifest.json"]) == content(log / "text", ["manifest.json"])


BAD = {
    "": "",
    "NA": "'NA'",
    "-0.5": "'-0.5'",
    "-1": "'-1'",
    "nan": "'nan'",
    "inf": "'inf'",
    "1e39": "'1e39'",
    "many": "'many'",
}


def test_rows_with_invalid_weights_are_rejected_with_the_reason(log: Path) -> None:
    """In text and in Parquet alike; 0 and the largest float32 are weights."""
    rows = draw_rows(12)[0]
    texts = [*BAD, "0", "3.4028234e38", "1e-3", "+2"]
    rows = rows.set_column(1, "importance", pa.array(texts))
    write_csv(log / "bad.csv", rows)
    pq.write_table(rows, log / "bad.parquet")
    for source in ("bad.csv", "bad.parquet"):
        given = [f"input.train={log}/{source}", "rejects.max_fraction=1", "encoding.num_embeddings=100"]
        shutil.rmtree(log / "out", ignore_errors=True)
        manifest = run(log / "out", *options(log), *given)
        reasons = [(each["column"], each["reason"]) for each in rejects_of(log / "out")]
        rule = "must be a number from 0 on, within the range of float32"
        assert reasons == [("importance", f"importance is {text!r}, {rule}") for text in BAD]
        expected = np.array([0.0, 3.4028234e38, 1e-3, 2.0], np.float32)
        assert table_of(manifest)["importance"].to_numpy().tolist() == expected.tolist()


def test_numbers_that_are_not_weights_are_rejected(log: Path) -> None:
    """Nulls, NaN, inf and negative numbers of a double column; and null words do not apply."""
    describe(log)
    rows = draw_rows(6)[0]
    bad = pa.array([None, float("nan"), float("inf"), -1.0, 0.0, 2.0])
    pq.write_table(rows.set_column(1, "importance", bad), log / "bad.parquet")
    manifest = run(log / "out", *options(log), f"input.train={log}/bad.parquet", "rejects.max_fraction=1")
    assert [each["line"] for each in rejects_of(log / "out")] == [1, 2, 3, 4]
    assert table_of(manifest)["importance"].to_pylist() == [0.0, 2.0]


def test_null_words_are_weights_if_they_are_numbers(log: Path) -> None:
    """As they are labels: a weight is never missing."""
    path = describe(log)
    path.write_text(path.read_text().replace("[NA]", "[NA, '0', '2']"))
    rows = draw_rows(4)[0].set_column(1, "importance", pa.array([0.0, 2.0, 3.0, 0.5]))
    write_csv(log / "few.csv", rows)
    pq.write_table(rows, log / "few.parquet")
    for source in ("few.csv", "few.parquet"):
        manifest = run(log / source[4:], *options(log), f"input.train={log}/{source}")
        assert table_of(manifest)["importance"].to_pylist() == [0.0, 2.0, 3.0, 0.5]


@pytest.mark.parametrize("shuffle", ["none", "block", "full"])
def test_weights_stay_with_their_rows(log: Path, shuffle: str) -> None:
    """Through every shuffle, derived columns, splits by content, kept columns and targets."""
    more = ["split.val=0.3", "split.by=content", "keep=[shop]", "dense.target_columns=[shop]"]
    given = [f"input.train={log}/log.csv", f"shuffle={shuffle}", *more]
    manifest = run(log / "out", *options(log), *given)
    stored = pa.concat_tables([table_of(manifest, split) for split in ("train", "val")])
    ages = stored["age"].to_numpy()
    found = sorted(
        zip(ages.tolist(), stored["importance"].to_pylist(), stored["clicked"].to_pylist(), strict=True)
    )
    rows = draw_rows(ROWS)[0]
    logs = np.log1p(rows["age"].to_numpy()).astype(np.float32).tolist()
    weights = rows["importance"].cast(pa.float32()).to_pylist()
    assert found == sorted(zip(logs, weights, rows["clicked"].to_pylist(), strict=True))


def test_rows_without_labels_have_no_weights(log: Path) -> None:
    rows = draw_rows(50, seed=1)[0].drop_columns(["clicked", "importance"])
    write_csv(log / "test.csv", rows)
    given = [f"input.train={log}/log.csv", f"input.test={log}/test.csv", "input.unlabelled=[test]"]
    manifest = run(log / "out", *options(log), *given)
    assert table_of(manifest, "test").schema.names == table_of(manifest).schema.names[2:]
    assert manifest.splits["test"].weights is None


def test_two_weights_of_a_row_are_refused(log: Path) -> None:
    describe(log, columns=[*COLUMNS, "{name: dwell, role: weight}"])
    rule = "gives importance and dwell the role weight, and a row has one weight"
    with refused(ConfigError, "dataset.columns", rule):
        run(log / "out", *options(log), f"input.train={log}/log.csv")


def test_without_a_label_a_weight_is_not_read(log: Path) -> None:
    """No metric needs it, so files may lack it."""
    describe(log, columns=COLUMNS[1:])
    rows = draw_rows(50)[0].drop_columns(["clicked", "importance"])
    write_csv(log / "bare.csv", rows)
    manifest = run(log / "out", *options(log), f"input.train={log}/bare.csv")
    assert manifest.weight is None
    assert manifest.label is None
