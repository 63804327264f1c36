"""Weights of lists' elements (role: element_weights): beside the ids, cut with them, the same from text and Parquet."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError
from tests.dwell_log import COLUMNS, DWELL, describe, draw_rows, write_parquet
from tests.make_log import write_csv
from tests.preprocessing.running import content, rejects_of, run, spec_of, table_of
from tests.refusals import refused

ROWS = 2000
HASH = ["encoding=hash", "encoding.num_embeddings=100"]
TARGET = "item_target"
FORMS = {"csv": write_csv, "parquet": write_parquet}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    describe(tmp_path)
    for form, write in FORMS.items():
        write(tmp_path / f"log.{form}", draw_rows(ROWS))
    return tmp_path


def options(folder: Path, source: str, *others: str) -> list[str]:
    return [f"dataset={folder}/log.yaml", *HASH, f"input.train={folder}/{source}", *others]


@pytest.mark.parametrize("form", FORMS)
def test_weights_lie_beside_the_ids(log: Path, form: str) -> None:
    manifest = run(log / "out", *options(log, f"log.{form}", "split.val=0.2"))
    assert {column.name: column.weights for column in manifest.sparse} == {"item": None, "seen": "dwell"}
    assert read_manifest(log / "out") == manifest
    stored = pa.concat_tables([table_of(manifest, split) for split in ("train", "val")])
    assert stored.schema.field("dwell").type.value_type == pa.float32()
    assert stored["dwell"].to_pylist() == draw_rows(ROWS)["dwell"].to_pylist()
    sizes = [[len(row) for row in stored[name].to_pylist()] for name in ("seen", "dwell")]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("shuffle", ["none", "full"])
def test_parquet_gives_the_dataset_of_the_text(log: Path, shuffle: str) -> None:
    for form in FORMS:
        run(log / f"of_{form}", *options(log, f"log.{form}", f"shuffle={shuffle}"))
    texts, parquet = (content(log / f"of_{form}", ["manifest.json"]) for form in FORMS)
    assert texts == parquet


def test_a_log_without_weights_makes_the_same_bytes_as_before(log: Path) -> None:
    """Without them nothing is written of them: an ignored column leaves the bytes of a log that lacks it."""
    describe(log, columns=[*COLUMNS[:-1], "{name: dwell, role: ignore}"])
    ignored = run(log / "ignored", *options(log, "log.csv"))
    describe(log, columns=COLUMNS[:-1])
    write_csv(log / "without.csv", draw_rows(ROWS).drop_columns(["dwell"]))
    run(log / "without", *options(log, "without.csv"))
    skipped = ["manifest.json"]
    assert content(log / "ignored", skipped) == content(log / "without", skipped)
    assert '"weights"' not in (log / "ignored" / "manifest.json").read_text()
    assert ignored.sparse[1].weights is None


def test_weights_change_no_other_column(log: Path) -> None:
    """With a target column, buckets and a kept column beside them. Folds of train are dealt by a row's content."""
    more = ["dense.target_columns=[item]", "dense.bucket_columns=[age]", "keep=[item]", "split.val=0.2"]
    weighted = run(log / "weighted", *options(log, "log.csv", *more))
    describe(log, columns=[*COLUMNS[:-1], "{name: dwell, role: ignore}"])
    ignored = run(log / "ignored", *options(log, "log.csv", *more))
    for split in ("train", "val"):
        tables = [table_of(manifest, split) for manifest in (weighted, ignored)]
        without = ["dwell"] if split == "val" else ["dwell", TARGET]
        assert tables[0].drop_columns(without) == tables[1].drop_columns(without[1:])


@pytest.mark.parametrize("end", ["first", "last"])
@pytest.mark.parametrize("form", FORMS)
def test_weights_are_cut_with_their_list(log: Path, form: str, end: str) -> None:
    columns = [*COLUMNS[:3], COLUMNS[3].replace("}", f", {end}: 2}}"), DWELL]
    describe(log, columns=columns)
    manifest = run(log / "out", *options(log, f"log.{form}"))
    kept = [row[:2] if end == "first" else row[-2:] for row in draw_rows(ROWS)["dwell"].to_pylist()]
    assert table_of(manifest)["dwell"].to_pylist() == kept


RULE = "each element must be a number from 0 on, within the range of float32"
FAULTS: list[tuple[list[int] | None, list[Any] | None, str | None]] = [
    ([1, 2], [1.0, -0.5], RULE),
    ([1, 2], [1.0, float("nan")], RULE),
    ([1, 2], [1.0, float("inf")], RULE),
    ([1, 2], [1.0, None], RULE),
    ([1, 2], [1.0], "dwell has 1 elements, seen has 2: each needs its weight"),
    ([1], [1.0, 2.0], "dwell has 2 elements, seen has 1: each needs its weight"),
    ([], [1.0], "dwell has 1 elements, seen has 0: each needs its weight"),
    ([1], None, "dwell has 0 elements, seen has 1: each needs its weight"),
    ([1, 2], [0.0, 3.0], None),
    ([], [], None),
    (None, None, None),
    ([], None, None),
]


@pytest.mark.parametrize("form", FORMS)
def test_rows_with_invalid_element_weights_are_rejected(log: Path, form: str) -> None:
    """Its reason is given. Lists without elements need no weights."""
    rows = draw_rows(len(FAULTS))
    for name, values in (("seen", [row[0] for row in FAULTS]), ("dwell", [row[1] for row in FAULTS])):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values))
    FORMS[form](log / f"bad.{form}", rows)
    manifest = run(log / "out", *options(log, f"bad.{form}", "rejects.max_fraction=1"))
    found = rejects_of(log / "out")
    reasons = [reason for _, _, reason in FAULTS if reason]
    assert [each["column"] for each in found] == ["dwell"] * len(reasons)
    assert [each["reason"].endswith(reason) for each, reason in zip(found, reasons, strict=True)] == [
        True
    ] * 8
    assert table_of(manifest)["dwell"].to_pylist() == [[0.0, 3.0], [], [], []]
    assert table_of(manifest)["seen"].to_pylist()[1:] == [[], [], []]


@pytest.mark.parametrize("form", FORMS)
def test_null_words_are_weights_if_they_are_numbers(log: Path, form: str) -> None:
    """A word that is no number stands for a list without weights."""
    path = describe(log)
    path.write_text(path.read_text().replace("[NA]", "[NA, '0', '-1']"))
    rows = draw_rows(4)
    rows = rows.set_column(3, "seen", pa.array(["5", "NA", "-1", "6|7"]))
    rows = rows.set_column(4, "dwell", pa.array(["0", "NA", "-1", "0|2"]))
    FORMS[form](log / f"null.{form}", rows)
    manifest = run(log / "out", *options(log, f"null.{form}"))
    assert table_of(manifest)["dwell"].to_pylist() == [[0.0], [], [], [0.0, 2.0]]


def as_texts(column: pa.ChunkedArray) -> pa.Array:
    return pa.array(["|".join(map(str, row)) for row in column.to_pylist()])


STORED: dict[str, Callable[[pa.ChunkedArray], pa.Array]] = {
    "doubles": lambda column: column.cast(pa.list_(pa.float64())),
    "large_lists": lambda column: column.cast(pa.large_list(pa.float32())),
    "lists_of_texts": lambda column: pa.array([[str(x) for x in row] for row in column.to_pylist()]),
    "texts": as_texts,
    "dictionary": lambda column: as_texts(column).dictionary_encode(),
}


@pytest.mark.parametrize("store", STORED)
def test_every_form_of_parquet_gives_the_same_weights(log: Path, store: str) -> None:
    rows = draw_rows(200)
    write_parquet(log / "same.parquet", rows.set_column(4, "dwell", STORED[store](rows["dwell"])))
    manifest = run(log / "out", *options(log, "same.parquet"))
    assert table_of(manifest)["dwell"].to_pylist() == rows["dwell"].to_pylist()


def test_negative_zero_is_the_weight_zero(log: Path) -> None:
    """As text and as a number: its bits are those that stand for a missing key."""
    for form, values in (("csv", ["-0", "-0.0|1"]), ("parquet", [[-0.0], [-0.0, 1.0]])):
        rows = draw_rows(2).set_column(3, "seen", pa.array([[4], [5, 6]]))
        FORMS[form](log / f"zero.{form}", rows.set_column(4, "dwell", pa.array(values)))
        manifest = run(log / f"of_{form}", *options(log, f"zero.{form}"))
        assert table_of(manifest)["dwell"].to_pylist() == [[0.0], [0.0, 1.0]]


def test_weights_take_the_separator_of_their_list(log: Path) -> None:
    spec = spec_of(str(describe(log)))
    assert [column.separator for column in spec.element_weights] == ["|"]
    own = "{name: dwell, role: element_weights, weights_of: seen, separator: ';'}"
    spec = spec_of(str(describe(log, columns=[*COLUMNS[:-1], own])))
    assert [column.separator for column in spec.element_weights] == [";"]


PLACE, NAMES = "dataset.columns[4] (dwell)", "names the list that a column with role: element_weights weighs"
ITS_LISTS = "is taken from the list that the column weighs"
WRONG = [
    ([*COLUMNS[:-1], "{name: dwell, role: element_weights}"], f"{PLACE}: weights_of", NAMES),
    ([*COLUMNS[:-1], DWELL.replace("seen", "[seen]")], f"{PLACE}: weights_of", NAMES),
    (
        [*COLUMNS[:2], COLUMNS[2].replace("}", ", weights_of: seen}"), *COLUMNS[3:]],
        "dataset.columns[2] (item): weights_of",
        NAMES,
    ),
    (
        [*COLUMNS[:-1], DWELL.replace("seen", "item")],
        "dataset.columns: dwell.weights_of",
        "must be a sparse column of lists, seen",
    ),
    (
        [*COLUMNS, DWELL.replace("dwell", "views")],
        "dataset.columns",
        "gives seen the element weights of 2 columns",
    ),
    ([*COLUMNS[:-1], DWELL.replace("}", ", last: 3}")], f"{PLACE}: last", ITS_LISTS),
    ([*COLUMNS[:-1], DWELL.replace("}", ", kind: float}")], f"{PLACE}: kind", ITS_LISTS),
]


@pytest.mark.parametrize(("columns", "key", "rule"), WRONG, ids=map(str, range(len(WRONG))))
def test_element_weights_without_a_list_are_refused(
    log: Path, columns: list[str], key: str, rule: str
) -> None:
    describe(log, columns=columns)
    with refused(ConfigError, key, rule):
        run(log / "out", *options(log, "log.csv"))
    assert not (log / "out").exists()


def test_rows_encoded_as_before_keep_their_weights(log: Path) -> None:
    run(log / "first", *options(log, "log.csv"))
    known = [f"dataset={log}/log.yaml", f"input.train={log}/log.parquet"]
    known += ["encoding=from_dataset", f"encoding.path={log}/first"]
    manifest = run(log / "again", *known)
    assert table_of(manifest)["dwell"].to_pylist() == draw_rows(ROWS)["dwell"].to_pylist()
    describe(log, columns=[*COLUMNS[:-1], "{name: dwell, role: ignore}"])
    shutil.rmtree(log / "again")
    with refused(ConfigError, f"encoding.path={log}/first", "has other columns than dataset=log (seen)"):
        run(log / "again", *known)
