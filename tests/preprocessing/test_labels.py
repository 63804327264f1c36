"""Several labels: shards hold what the log says, missing ones as NaN; text and Parquet give the same dataset."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import LabelCounts, LearntLabel, Manifest
from dlrm_app.errors import ConfigError
from tests.labelled_log import describe_labels, draw_labelled
from tests.preprocessing.running import content, rejects_of, run, table_of
from tests.refusals import refused
from tests.weighted_log import describe, write_csv

ROWS = 3000
HASH = ["encoding=hash", "encoding.num_embeddings=100"]
LABELS = [LearntLabel("clicked"), LearntLabel("order", "clicked", 2.0), LearntLabel("like")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    describe_labels(tmp_path)
    write_csv(tmp_path / "log.csv", draw_labelled(ROWS)[0])
    return tmp_path


def made(folder: Path, name: str, source: str, *others: str) -> Manifest:
    return run(folder / name, f"dataset={folder}/log.yaml", *HASH, f"input.train={folder}/{source}", *others)


def stored(table: pa.Table, name: str) -> list[float | None]:
    """A further label's values, None where a row lacks it."""
    return [None if np.isnan(value) else value for value in table[name].to_numpy()]


def test_further_labels_are_columns_beside_the_main_one(log: Path) -> None:
    rows = draw_labelled(ROWS)[0]
    manifest = made(log, "out", "log.csv", "split.val=0.2")
    assert (manifest.label, manifest.labels) == ("clicked", LABELS)
    tables = [table_of(manifest, split) for split in ("train", "val")]
    whole = pa.concat_tables(tables)
    assert whole.schema.names[:3] == ["clicked", "order", "like"]
    for name in ("order", "like"):
        assert stored(whole, name) == rows[name].to_pylist()


def test_the_manifest_counts_the_rows_that_have_each_label(log: Path) -> None:
    manifest = made(log, "out", "log.csv", "split.val=0.2")
    for split in ("train", "val"):
        table = table_of(manifest, split)
        for name in ("order", "like"):
            values = table[name].to_numpy()
            expected = LabelCounts(int((~np.isnan(values)).sum()), int((values == 1).sum()))
            assert manifest.splits[split].labels[name] == expected


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_rows_count_as_in_metrics(log: Path, is_weighted: bool, share: float) -> None:
    """By their weights, and 1 / share times without the main label."""
    describe_labels(log, weighted=is_weighted)
    sampled = [] if share == 1 else [f"sampling.negatives={share}"]
    manifest = made(log, "out", "log.csv", *sampled)
    table = table_of(manifest)
    weights = table["importance"].to_numpy().astype(float) if is_weighted else np.ones(len(table))
    weights = np.where(table["clicked"].to_numpy() == 1, weights, weights / share)
    for label in manifest.further_labels:
        values = table[label.name].to_numpy()
        known, positive = ~np.isnan(values), values == 1
        expected = weights[positive].sum(), weights[known].sum()
        assert manifest.clicks_and_rows("train", label=label) == pytest.approx(expected, rel=1e-11)
        has_sums = manifest.splits["train"].labels[label.name].weights is not None
        assert has_sums == (is_weighted or share < 1)


def as_strings(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in column.to_pylist()])


STORED: dict[str, Callable[[pa.ChunkedArray], pa.Array]] = {
    "integers": lambda column: column,
    "doubles": lambda column: column.cast(pa.float64()),
    "flags": lambda column: column.cast(pa.bool_()),
    "strings": as_strings,
    "dictionary": lambda column: as_strings(column).dictionary_encode(),
    "NaN": lambda column: pa.array(column.cast(pa.float64()).to_numpy()),
}


@pytest.mark.parametrize("store", STORED.values(), ids=STORED)
def test_parquet_gives_the_dataset_of_the_text(log: Path, store: Callable[..., pa.Array]) -> None:
    rows = draw_labelled(ROWS)[0]
    pq.write_table(rows.set_column(1, "like", store(rows["like"])), log / "log.parquet")
    made(log, "text", "log.csv")
    made(log, "parquet", "log.parquet")
    assert content(log / "parquet", ["manifest.json"]) == content(log / "text", ["manifest.json"])


def test_the_size_of_units_does_not_matter(log: Path) -> None:
    rows = draw_labelled(60_000)[0]
    write_csv(log / "many.csv", rows)
    parts = ["layout.unit_mib=1", "sampling.negatives=0.5"]
    one, several = made(log, "one", "many.csv", parts[1]), made(log, "several", "many.csv", *parts)
    assert (log / "many.csv").stat().st_size > 1 << 20
    assert one.splits["train"].labels == several.splits["train"].labels
    for name in ("clicked", "order", "like"):
        np.testing.assert_array_equal(*(table_of(each)[name].to_numpy() for each in (one, several)))


def test_what_is_no_label_is_a_rejected_row_and_missing_is_not(log: Path) -> None:
    describe_labels(log)
    rows = draw_labelled(8)[0]
    texts = ["2", "yes", "0.5", "", "NA", "true", "1.0", "0"]
    rows = rows.set_column(1, "like", pa.array(texts))
    write_csv(log / "bad.csv", rows)
    pq.write_table(rows, log / "bad.parquet")
    for source in ("bad.csv", "bad.parquet"):
        shutil.rmtree(log / "out", ignore_errors=True)
        manifest = made(log, "out", source, "rejects.max_fraction=1")
        reasons = [each["reason"] for each in rejects_of(log / "out")]
        assert reasons == [f"like is {text!r}, must be 0 or 1" for text in texts[:3]]
        assert stored(table_of(manifest), "like") == [None, None, 1.0, 1.0, 0.0]


def test_a_row_without_the_main_label_is_rejected(log: Path) -> None:
    rows = draw_labelled(4)[0]
    rows = rows.set_column(0, "clicked", pa.array([1, None, 0, 1]))
    write_csv(log / "few.csv", rows)
    manifest = made(log, "out", "few.csv", "rejects.max_fraction=1")
    assert manifest.splits["train"].rows == 3
    assert [each["line"] for each in rejects_of(log / "out")] == [3]


def test_one_label_in_the_list_is_that_label_alone(log: Path) -> None:
    """To the byte."""
    columns = ["{name: clicked, role: label}", "{name: like, role: label}", "{name: order, role: label}"]
    columns += ["{name: importance, role: ignore}", "{name: age, role: dense, kind: float}"]
    columns += ["{name: shop, role: sparse, kind: integer}", "{name: user, role: sparse, kind: integer}"]
    for name, line in (("one", "label: clicked"), ("list", "labels: [clicked]")):
        describe(log, line, columns=columns)
        manifest = made(log, name, "log.csv")
        assert manifest.labels == []
    # the manifest keeps what was typed
    assert content(log / "one", ["manifest.json"]) == content(log / "list", ["manifest.json"])


def test_rows_without_labels_have_none(log: Path) -> None:
    rows = draw_labelled(200)[0]
    write_csv(log / "unlabelled.csv", rows.drop_columns(["clicked", "like", "order"]))
    made(log, "out", "log.csv")
    given = ["encoding=from_dataset", f"encoding.path={log}/out", "input.unlabelled=[test]"]
    manifest = run(log / "new", f"dataset={log}/log.yaml", *given, f"input.test={log}/unlabelled.csv")
    assert (manifest.label, manifest.labels, manifest.splits["test"].labels) == (None, [], {})


REFUSED = {
    "[order, {like: {given: clicked}}]": ("like: given", "must be a label listed before it (order)"),
    "[{order: {given: clicked}}, clicked]": ("order: given", "is not for the first label"),
    "[clicked, age]": ("age", "must be a column with the role label, clicked, like, order"),
    "[clicked, clicked]": ("clicked", "is named twice"),
    "[clicked, {like: {loss_weight: 0}}]": ("like: loss_weight", "must be a number above 0"),
    "[clicked, {like: {weight: 2}}]": ("like: weight", "is not a key of a label"),
}


def test_an_entry_that_is_no_label_is_refused_by_its_place(log: Path) -> None:
    with refused(ConfigError, "dataset.labels[1]", "must be a column, or ..."):
        made(log, "out", "log.csv", "dataset.labels=[clicked,[like]]")
    with refused(ConfigError, "dataset.labels", "is empty"):
        made(log, "out", "log.csv", "dataset.labels=[]")


@pytest.mark.parametrize("labels", REFUSED)
def test_what_describes_no_labels_is_refused_by_name(log: Path, labels: str) -> None:
    key, rule = REFUSED[labels]
    with refused(ConfigError, f"dataset.labels: {key}", rule):
        made(log, "out", "log.csv", f"dataset.labels={labels}")


def test_label_and_labels_together_are_refused(log: Path) -> None:
    with refused(ConfigError, "dataset.label", "and dataset.labels both name the label"):
        made(log, "out", "log.csv", "dataset.label=clicked")
