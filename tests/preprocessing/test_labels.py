"""Several labels: shards hold what the log says, missing ones as NaN; text and Parquet give the same dataset."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dlrm_app
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.dataset.splits import LabelCounts
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.logs.sources import parquet_units
from tests.labelled_log import (
    all_roles,
    describe_all_roles,
    describe_labels,
    draw_labelled,
    made,
    stored,
)
from tests.make_log import write_csv
from tests.preprocessing.interruptions import run_in_pieces
from tests.preprocessing.running import content, rejects_of, run, table_of
from tests.refusals import refused
from tests.weighted_log import describe

ROWS = 3000
LABELS = [LearntLabel("clicked"), LearntLabel("order", "clicked", 2.0), LearntLabel("like")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    describe_labels(tmp_path)
    write_csv(tmp_path / "log.csv", draw_labelled(ROWS)[0])
    return tmp_path


def test_other_labels_are_columns_beside_the_main_one(log: Path) -> None:
    rows = draw_labelled(ROWS)[0]
    manifest = made(log, "out", "log.csv", "split.val=0.2")
    assert (manifest.label, manifest.labels) == ("clicked", LABELS)
    tables = [table_of(manifest, split) for split in ("train", "val")]
    whole = pa.concat_tables(tables)
    assert whole.schema.names[:3] == ["clicked", "order", "like"]
    for name in ("order", "like"):
        assert stored(whole, name) == rows[name].to_pylist()


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


def test_every_nan_is_the_same_missing_label(log: Path) -> None:
    """Also those of other bits: datasets are the same to the byte."""
    rows = draw_labelled(ROWS)[0]
    likes = rows["like"].cast(pa.float64()).to_numpy().copy()
    likes[np.isnan(likes)] = -np.float64("nan")
    pq.write_table(rows.set_column(1, "like", pa.array(likes)), log / "log.parquet")
    made(log, "text", "log.csv")
    made(log, "parquet", "log.parquet")
    assert content(log / "parquet", ["manifest.json"]) == content(log / "text", ["manifest.json"])


@pytest.mark.parametrize("store", STORED.values(), ids=STORED)
def test_parquet_gives_the_dataset_of_the_text(log: Path, store: Callable[..., pa.Array]) -> None:
    rows = draw_labelled(ROWS)[0]
    pq.write_table(rows.set_column(1, "like", store(rows["like"])), log / "log.parquet")
    made(log, "text", "log.csv")
    made(log, "parquet", "log.parquet")
    assert content(log / "parquet", ["manifest.json"]) == content(log / "text", ["manifest.json"])


def test_rows_with_invalid_labels_are_rejected_and_missing_ones_are_not(log: Path) -> None:
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


def test_a_rating_is_refused_with_the_way_to_a_label(log: Path) -> None:
    rows = draw_labelled(40)[0]
    rows = rows.set_column(0, "clicked", pa.array([1 + row % 5 for row in range(40)]))
    write_csv(log / "rated.csv", rows)
    pq.write_table(rows, log / "rated.parquet")
    for source in ("rated.csv", "rated.parquet"):
        with pytest.raises(DataError) as error:
            made(log, source[6:], source)
        assert "make one of clicked before, such as 1 from 4 on" in str(error.value)


def test_a_row_without_the_main_label_is_rejected(log: Path) -> None:
    rows = draw_labelled(4)[0]
    rows = rows.set_column(0, "clicked", pa.array([1, None, 0, 1]))
    write_csv(log / "few.csv", rows)
    manifest = made(log, "out", "few.csv", "rejects.max_fraction=1")
    assert manifest.splits["train"].rows == 3
    assert [each["line"] for each in rejects_of(log / "out")] == [3]


def test_a_list_of_one_label_equals_one_label(log: Path) -> None:
    """To the byte."""
    columns = ["{name: clicked, role: label}", "{name: like, role: label}", "{name: order, role: label}"]
    columns += ["{name: importance, role: ignore}", "{name: age, role: dense, kind: float}"]
    columns += ["{name: shop, role: sparse, kind: integer}", "{name: user, role: sparse, kind: integer}"]
    for name, line in (("one", "label: clicked"), ("list", "labels: [clicked]")):
        describe(log, line, columns=columns)
        manifest = made(log, name, "log.csv")
        assert manifest.labels == []
        assert "labels" not in manifest.config["dataset"]
    assert content(log / "one") == content(log / "list")


def test_rows_without_labels_have_none(log: Path) -> None:
    rows = draw_labelled(200)[0]
    write_csv(log / "unlabelled.csv", rows.drop_columns(["clicked", "like", "order"]))
    made(log, "out", "log.csv")
    given = ["encoding=from_dataset", f"encoding.path={log}/out", "input.unlabelled=[test]"]
    manifest = run(log / "new", f"dataset={log}/log.yaml", *given, f"input.test={log}/unlabelled.csv")
    assert (manifest.label, manifest.labels, manifest.splits["test"].labels) == (None, [], {})


def test_an_entry_that_is_not_a_label_is_refused_by_its_place(log: Path) -> None:
    with refused(ConfigError, "dataset.labels[1]", "must be a column, or a column with settings"):
        made(log, "out", "log.csv", "dataset.labels=[clicked,[like]]")
    with refused(ConfigError, "dataset.labels", "is empty"):
        made(log, "out", "log.csv", "dataset.labels=[]")


REFUSED = {
    "[order, {like: {given: clicked}}]": ("like: given", "must be a label before it"),
    "[clicked, {like: {given: like}}]": ("like: given", "must be a label before it"),
    "[{order: {given: clicked}}, clicked]": ("order: given", "is not for the first label"),
    "[clicked, age]": ("age", "is not a column with the role label"),
    "[clicked, clicked]": ("clicked", "is named twice"),
    '[clicked, "order|clicked"]': (
        "order|clicked",
        "has a name with |, and order|click stands for order given click",
    ),
    "[clicked, {like: {loss_weight: 0}}]": ("like: loss_weight", "must be a number above 0, up to 1e+06"),
    "[clicked, {like: {loss_weight: 1.1e6}}]": ("like: loss_weight", "must be a number above 0, up to 1e+06"),
    "[clicked, {like: {loss_weight: many}}]": ("like: loss_weight", "must be a number above 0, up to 1e+06"),
    "[clicked, {like: {loss_weight: true}}]": ("like: loss_weight", "must be a number above 0, up to 1e+06"),
    "[{clicked: {loss_weight: 2}}]": (
        "clicked: loss_weight",
        "weighs a label against others, and there are none",
    ),
    "[clicked, {like: {weight: 2}}]": ("like: weight", "is not a key of a label"),
}


@pytest.mark.parametrize("labels", REFUSED)
def test_invalid_descriptions_of_labels_are_refused_by_name(log: Path, labels: str) -> None:
    key, rule = REFUSED[labels]
    with refused(ConfigError, f"dataset.labels: {key}", rule):
        made(log, "out", "log.csv", f"dataset.labels={labels}")


def test_label_and_labels_together_are_refused(log: Path) -> None:
    with refused(ConfigError, "dataset.label", "and dataset.labels both name the label"):
        made(log, "out", "log.csv", "dataset.label=clicked")


def test_all_problems_of_labels_are_named_at_once(log: Path) -> None:
    labels = "[{clicked: {given: like}}, age, {order: {loss_weight: -1, given: like}}, order]"
    with pytest.raises(ConfigError) as caught:
        made(log, "out", "log.csv", f"dataset.labels={labels}", "dataset.label=clicked")
    keys = ["clicked: given", "age", "order: loss_weight", "order: given", "order"]
    assert [each.key for each in caught.value.problems] == [
        "dataset.label",
        *(f"dataset.labels: {key}" for key in keys),
    ]
    assert all(each.cure for each in caught.value.problems)


def test_several_labels_without_a_choice_are_refused(log: Path) -> None:
    rule, cure = "gives clicked and like and order the role label", "...dataset.labels=..."
    with refused(ConfigError, "dataset.columns", rule, cure):
        made(log, "out", "log.csv", "dataset.labels=null")


def test_a_dataset_with_one_label_does_not_mention_others(log: Path) -> None:
    """Its manifest is what it was before there could be several."""
    manifest = made(log, "out", "log.csv", "dataset.labels=null", "dataset.label=clicked")
    assert "labels" not in json.loads((log / "out" / "manifest.json").read_text())
    assert "labels" not in manifest.config["dataset"]
    assert "order" not in table_of(manifest).schema.names


@pytest.mark.parametrize("header", ["true", "false"])
@pytest.mark.parametrize("quote", ["", "quote: '\"'"])
def test_labels_lie_beside_weights_and_times(tmp_path: Path, header: str, quote: str) -> None:
    """Read by name or by position, in text and in Parquet."""
    path = describe_all_roles(tmp_path, quote)
    path.write_text(path.read_text().replace("header: true", f"header: {header}"))
    rows = all_roles(ROWS)
    write_csv(tmp_path / "log.csv", rows)
    pq.write_table(rows, tmp_path / "log.parquet", row_group_size=500)
    if header == "false":
        text = (tmp_path / "log.csv").read_text()
        (tmp_path / "log.csv").write_text(text.partition("\n")[2])
    manifest = made(tmp_path, "text", "log.csv")
    made(tmp_path, "parquet", "log.parquet")
    assert content(tmp_path / "text", ["manifest.json"]) == content(tmp_path / "parquet", ["manifest.json"])
    table = table_of(manifest)
    assert table.schema.names[:4] == ["clicked", "order", "like", "importance"]
    assert table["clicked"].to_pylist() == rows["clicked"].to_pylist()
    assert table["importance"].to_pylist() == rows["importance"].cast(pa.float32()).to_pylist()
    for name in ("order", "like"):
        assert stored(table, name) == rows[name].to_pylist()


def test_null_words_are_missing_labels(log: Path) -> None:
    """Numbers among them by value; the main label is never missing."""
    path = describe_labels(log)
    path.write_text(path.read_text().replace("[NA]", "['-1', unknown]"))
    rows = draw_labelled(6)[0]
    rows = rows.set_column(1, "like", pa.array(["-1", "unknown", "-1.0", "1", "0", ""]))
    write_csv(log / "few.csv", rows)
    pq.write_table(rows, log / "few.parquet")
    numbers = pa.array([-1, -1, -1, 1, 0, None])
    pq.write_table(rows.set_column(1, "like", numbers), log / "numbers.parquet")
    for source in ("few.csv", "few.parquet", "numbers.parquet"):
        manifest = made(log, source.replace(".", "-"), source)
        assert stored(table_of(manifest), "like") == [None, None, None, 1.0, 0.0, None]


WAYS = {
    "plain": [],
    "full shuffle": ["shuffle=full", "layout.shuffled_shard_rows=600"],
    "by content": ["shuffle=block", "split.by=content", "split.val=0.2", "dense.target_columns=[shop]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_interruptions_end_in_the_same_bytes(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 100_000)
    describe_all_roles(tmp_path)
    write_csv(tmp_path / "log.csv", all_roles(6000))
    keys = [*WAYS[way], "sampling.negatives=0.5", "threads=1", "layout.unit_mib=1"]
    made(tmp_path, "whole", "log.csv", *keys)
    interruptions = run_in_pieces(lambda: made(tmp_path, "pieces", "log.csv", *keys), monkeypatch, commits=1)
    assert interruptions > 2
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


@pytest.mark.parametrize("shuffle", ["none", "block", "full"])
def test_labels_stay_with_their_rows(tmp_path: Path, shuffle: str) -> None:
    describe_all_roles(tmp_path)
    rows = all_roles(ROWS)
    write_csv(tmp_path / "log.csv", rows)
    more = [f"shuffle={shuffle}", "split.val=0.3", "split.by=content", "keep=[shop]", "dense.transform=none"]
    manifest = made(tmp_path, "out", "log.csv", *more)
    table = pa.concat_tables([table_of(manifest, split) for split in ("train", "val")])
    names = ["age", "clicked", "order", "like"]
    found = [list(row.values()) for row in table.select(names).to_pylist()]
    found = [[None if value != value else value for value in row] for row in found]
    rows = rows.set_column(rows.column_names.index("age"), "age", rows["age"].cast(pa.float32()))
    expected = [[*row.values()] for row in rows.select(names).to_pylist()]
    assert sorted(found, key=str) == sorted(([a, c, *map(as_float, m)] for a, c, *m in expected), key=str)


def as_float(label: int | None) -> float | None:
    return None if label is None else float(label)


def test_dask_workers_make_the_same_dataset(log: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask's scheduler is an extra")
    keys = ["shuffle=full", "sampling.negatives=0.5"]
    made(log, "local", "log.csv", *keys)
    one = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**one) as cluster:
        workers = ["executor=dask", f"dask.address={cluster.scheduler_address}"]
        made(log, "dask", "log.csv", *keys, *workers)
    assert content(log / "dask") == content(log / "local")


def test_encodings_do_not_depend_on_other_labels(log: Path) -> None:
    """The dataset whose encodings are used, or grown, may have other labels beside the same main one."""
    made(log, "one", "log.csv", "dataset.labels=null", "dataset.label=clicked", "dense.target_columns=[shop]")
    known = [f"encoding.path={log}/one", "encoding.num_embeddings=null"]
    write_csv(log / "other.csv", draw_labelled(ROWS, seed=1)[0])
    more = made(log, "more", "other.csv", "dense.target_columns=[shop]")
    again = made(log, "again", "other.csv", "encoding=from_dataset", *known)
    assert [each.name for each in again.labels] == ["clicked", "order", "like"]
    names = ["clicked", "order", "like", "age", "shop", "user"]
    first, second = (table_of(each).select(names).to_pandas() for each in (again, more))
    assert first.equals(second)
    vocab = ["encoding=vocab", "encoding.num_embeddings=null"]
    made(log, "first", "log.csv", *vocab, "encoding.day=1", "dataset.labels=[clicked,order]")
    grown = made(log, "second", "log.csv", *vocab, "encoding.day=2", f"encoding.grow_from={log}/first")
    assert [each.name for each in grown.labels] == ["clicked", "order", "like"]


def test_files_without_another_label_are_named(log: Path) -> None:
    """A file that has the main label must have the others; nulls say that they are not known."""
    rows = draw_labelled(50)[0].drop_columns(["like"])
    write_csv(log / "short.csv", rows)
    pq.write_table(rows, log / "short.parquet")
    for source in ("short.csv", "short.parquet"):
        with refused(ConfigError, f"{log}/{source}", "lacks the columns like..."):
            made(log, "out", source)
    nulls = rows.append_column("like", pa.nulls(50))
    pq.write_table(nulls, log / "nulls.parquet")
    assert made(log, "nulls", "nulls.parquet").splits["train"].labels["like"] == LabelCounts(0, 0)


def test_columns_that_labels_cannot_be_read_from_are_named(log: Path) -> None:
    rows = draw_labelled(50)[0]
    times = pa.array([0] * 50, pa.timestamp("ms"))
    pq.write_table(rows.set_column(1, "like", times), log / "times.parquet")
    rule = "is timestamp[ms], which another label cannot be read from: it takes numbers or strings or true or false"
    with refused(ConfigError, f"{log}/times.parquet: column like", rule):
        made(log, "out", "times.parquet")


def test_labels_are_given_from_python(log: Path) -> None:
    """As Python's lists and mappings; the dataset is that of the words on the command line."""
    given = {"dataset": log / "log.yaml", "input.train": log / "log.csv", "encoding": "hash"}
    given |= {"encoding.num_embeddings": 100, "dense.transform": "none", "encoding.crosses": None}
    given |= {"dense.bucket_columns": None, "dense.target_columns": None}
    labels = ["clicked", {"like": {"given": "clicked", "loss_weight": 0.5}}]
    found = dlrm_app.preprocess({**given, "dataset.labels": labels, "output": log / "python"}).manifest
    assert found.labels == [LearntLabel("clicked"), LearntLabel("like", "clicked", 0.5)]
    words = "dataset.labels=[clicked,{like:{given:clicked,loss_weight:0.5}}]"
    typed = made(log, "typed", "log.csv", words, "dense.transform=none")
    assert found.labels == typed.labels
    assert content(log / "python", ["manifest.json"]) == content(typed.folder, ["manifest.json"])


def test_a_label_may_be_the_key_of_a_folder(tmp_path: Path) -> None:
    """Many small files, whose folders say the order, and by their name that it is not known."""
    describe_labels(tmp_path)
    rows = draw_labelled(400)[0]
    for name in ("0", "1", "__HIVE_DEFAULT_PARTITION__"):
        for number in range(3):
            folder = tmp_path / "logs" / f"order={name}"
            folder.mkdir(parents=True, exist_ok=True)
            part = rows.slice(number * 100, 100).drop_columns(["order"])
            pq.write_table(part, folder / f"{number}.parquet")
    manifest = made(tmp_path, "out", "logs")
    orders = manifest.splits["train"].labels["order"]
    assert (orders.rows, orders.positives) == (600, 300)
    whole = table_of(manifest)
    assert stored(whole, "order") == [None] * 300 + [0.0] * 300 + [1.0] * 300
    assert stored(whole, "like") == rows["like"].slice(0, 300).to_pylist() * 3


def test_polars_and_arrow_decode_the_same_labels(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nulls, flags and NaN among them."""
    rows = draw_labelled(ROWS)[0]
    flags = rows["like"].cast(pa.bool_())
    doubles = pa.array(
        [None if i % 7 == 0 else float("nan") if i % 5 == 0 else float(i % 2) for i in range(ROWS)]
    )
    rows = rows.set_column(1, "like", flags).set_column(2, "order", doubles)
    pq.write_table(rows, log / "log.parquet")
    made(log, "polars", "log.parquet", "threads=1")
    monkeypatch.setattr(parquet_units, "polars_is_preferred", lambda source, names: False)
    made(log, "arrow", "log.parquet", "threads=1")
    assert content(log / "polars") == content(log / "arrow")
