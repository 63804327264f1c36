"""Vectors by raw value: a vocabulary of their file, rows of zeros for the rest, and growth by a newer file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.columns import vectors_in
from dlrm_app.dataset.encoding_files import read_vocabulary
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.tools.daily.measure import missing_shares
from tests.make_log import describe, write_csv
from tests.preprocessing.running import run, table_of
from tests.refusals import refused

COLUMNS = [
    "{name: clicked, role: label}",
    "{name: age, role: dense, kind: integer}",
    "{name: item, role: sparse, kind: string}",
    '{name: seen, role: sparse, kind: string, separator: "|"}',
]
WIDTH = 6


def describe_in(folder: Path, file: str = "items.parquet", more: str = "") -> None:
    path = describe(folder, COLUMNS)
    lines = [
        "derived:",
        f"  - {{name: item_text, kind: vectors, of: item, file: {folder}/{file}{more}}}",
        f"  - {{name: seen_text, kind: vectors, of: seen, file: {folder}/{file}}}",
    ]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")


def vectors_for(values: list[str], seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(len(values), WIDTH)).astype(np.float32)


def write_items(path: Path, values: list[str], vectors: np.ndarray) -> None:
    kind = pa.list_(pa.from_numpy_dtype(vectors.dtype))
    pq.write_table(pa.table({"value": values, "vector": pa.array([*vectors], kind)}), path)


ROWS = pa.table(
    {
        "clicked": [1, 0, 1, 0],
        "age": [20, 30, 40, 50],
        "item": ["a", "b", "z", None],
        "seen": pa.array([["a", "c"], ["z"], [], ["b", "z"]]),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    describe_in(tmp_path)
    write_csv(tmp_path / "log.csv", ROWS)
    write_items(tmp_path / "items.parquet", [*"abcd"], vectors_for([*"abcd"]))
    return tmp_path


def preprocess(folder: Path, output: str, *more: str) -> Manifest:
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/log.csv", "vectors.dtype=fp32"]
    return run(folder / output, *given, *more)


def column(manifest: Manifest, name: str) -> SparseColumn:
    return next(each for each in manifest.sparse if each.name == name)


def by_value(manifest: Manifest, name: str) -> dict[str, list[float]]:
    """Value → its vector, by the dataset's own files."""
    vocabulary = read_vocabulary(manifest.folder, column(manifest, name)).to_pydict()
    rows = vectors_in(manifest)[name].open()
    return {value: rows[i].tolist() for value, i in zip(vocabulary["value"], vocabulary["id"], strict=True)}


@pytest.mark.parametrize("encoding", [["encoding=vocab"], ["encoding=hash", "encoding.num_embeddings=50"]])
def test_every_value_of_the_file_has_its_vector(folder: Path, encoding: list[str]) -> None:
    """Also d, which no row holds; rows without a vector look up zeros."""
    manifest = preprocess(folder, "data", *encoding)
    expected = dict(zip("abcd", vectors_for([*"abcd"]).tolist(), strict=True))
    assert by_value(manifest, "item_text") == by_value(manifest, "seen_text") == expected
    table, rows = table_of(manifest, "train"), vectors_in(manifest)["item_text"].open()
    nothing = [0.0] * WIDTH
    assert rows[table["item_text"].to_numpy()].tolist() == [expected["a"], expected["b"], nothing, nothing]
    lists = [[rows[i].tolist() for i in ids] for ids in table["seen_text"].to_pylist()]
    assert lists == [[expected["a"], expected["c"]], [nothing], [], [expected["b"], nothing]]
    assert column(manifest, "item_text").missing_rate == 0.5
    assert column(manifest, "seen_text").missing_rate == 0.5
    assert missing_shares(manifest)["item_text"] == 0.5  # which the gate of days compares


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_vectors_may_be_of_any_float(folder: Path, kind: type[np.floating]) -> None:
    vectors = vectors_for([*"abcd"]).astype(kind)
    write_items(folder / "items.parquet", [*"abcd"], vectors)
    manifest = preprocess(folder, "data", "encoding=vocab", "vectors.dtype=fp16")
    rows = vectors_in(manifest)["item_text"].open()
    assert rows.dtype == np.float16
    assert np.array_equal(rows[2:], vectors.astype(np.float16))


def test_integer_values_are_found_whatever_their_type(tmp_path: Path) -> None:
    path = describe(tmp_path, [*COLUMNS[:2], "{name: item, role: sparse, kind: integer}"])
    derived = f"derived:\n  - {{name: text, kind: vectors, of: item, file: {tmp_path}/items.parquet}}\n"
    path.write_text(path.read_text() + derived)
    write_csv(tmp_path / "log.csv", {"clicked": [1, 0], "age": [1, 2], "item": [7, -3]})
    vectors = vectors_for([*"ab"])
    table = pa.table({"value": pa.array([-3, 7], pa.int16()), "vector": [*vectors]})
    pq.write_table(table, tmp_path / "items.parquet")
    manifest = preprocess(tmp_path, "data", "encoding=vocab")
    ids = table_of(manifest, "train")["text"].to_numpy()
    assert np.array_equal(vectors_in(manifest)["text"].open()[ids], vectors[[1, 0]])


def test_a_newer_file_keeps_ids_and_takes_changed_vectors(folder: Path) -> None:
    """b has another vector, c is gone and keeps its own, e is new."""
    first = preprocess(folder, "day1", "encoding=vocab", "encoding.day=2026-01-01")
    newer = [*"abde"]
    vectors = vectors_for(newer, seed=1)
    vectors[[0, 2]] = vectors_for([*"abcd"])[[0, 3]]
    write_items(folder / "items.parquet", newer, vectors)
    grown = preprocess(folder, "day2", "encoding=vocab", f"encoding.grow_from={folder}/day1")
    ids = [
        dict(zip(each["value"], each["id"], strict=True))
        for each in (read_vocabulary(m.folder, column(m, "item_text")).to_pydict() for m in (first, grown))
    ]
    assert ids[1] == {**ids[0], "e": 6}
    expected = dict(zip("abcd", vectors_for([*"abcd"]).tolist(), strict=True))
    expected |= {"b": vectors[1].tolist(), "e": vectors[3].tolist()}
    assert by_value(grown, "item_text") == expected


def test_growth_is_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    preprocess(folder, "day1", "encoding=vocab", "encoding.day=1")
    vectors = vectors_for([*"abcde"])
    vectors[1] = 0
    write_items(folder / "items.parquet", [*"abcde"], vectors)
    caplog.set_level("INFO")
    preprocess(folder, "day2", "encoding=vocab", f"encoding.grow_from={folder}/day1")
    lines = [r.message for r in caplog.records if r.message.startswith("item_text")]
    assert lines[-1].endswith("4 known before, of which 1 have another now, and 1 new")


def test_another_dataset_has_the_vectors_of_the_first(folder: Path) -> None:
    """Without the file, which may be gone by then."""
    first = preprocess(folder, "first", "encoding=vocab")
    (folder / "items.parquet").unlink()
    again = preprocess(folder, "again", "encoding=from_dataset", f"encoding.path={folder}/first")
    assert by_value(again, "seen_text") == by_value(first, "seen_text")
    assert vectors_in(again)["item_text"].path == f"{folder}/again/vectors/item_text.npy"


WRONG = {
    "widths": (["a", "b"], [[1.0, 2.0], [1.0]], "has vectors of 1 and 2 numbers"),
    "nan": (["a"], [[1.0, float("nan")]], "holds NaN or inf"),
    "inf": (["a"], [[1.0, float("inf")]], "holds NaN or inf"),
    "twice": (["a", "b", "a"], [[1.0], [2.0], [3.0]], "has the value 'a' twice"),
    "no vector": (["a", "b"], [[1.0], None], "has values without a vector"),
    "no value": (["a", None], [[1.0], [2.0]], "has vectors without a value"),
    "nothing": ([], [], "has no vector"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_cannot_be_used_is_refused(folder: Path, what: str) -> None:
    values, vectors, rule = WRONG[what]
    table = pa.table(
        {"value": pa.array(values, pa.string()), "vector": pa.array(vectors, pa.list_(pa.float32()))}
    )
    pq.write_table(table, folder / "items.parquet")
    with refused(DataError, f"file={folder}/items.parquet of ...", rule):
        preprocess(folder, "data", "encoding=vocab")


def test_another_width_than_before_is_refused(folder: Path) -> None:
    preprocess(folder, "day1", "encoding=vocab", "encoding.day=1")
    write_items(folder / "items.parquet", ["a"], np.ones((1, 3), np.float32))
    rule = f"has vectors of 3 numbers, and those of before have {WIDTH}"
    with refused(DataError, "...items.parquet of ...", rule):
        preprocess(folder, "day2", "encoding=vocab", f"encoding.grow_from={folder}/day1")


def test_a_missing_file_is_refused_before_work(folder: Path) -> None:
    (folder / "items.parquet").unlink()
    with refused(ConfigError, f"file={folder}/items.parquet of item_text", "cannot be read..."):
        preprocess(folder, "data", "encoding=vocab")
    assert not (folder / "data").exists()


def test_vectors_of_no_sparse_column_are_refused(folder: Path) -> None:
    path = describe(folder, COLUMNS)
    path.write_text(path.read_text() + "derived:\n  - {name: text, kind: vectors, of: age, file: x}\n")
    with refused(ConfigError, "dataset.derived: text: age", "must be a sparse column..."):
        preprocess(folder, "data", "encoding=vocab")
