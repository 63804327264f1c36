"""Several labels: shards hold what the log says, missing ones as NaN; text and Parquet give the same dataset."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.checking.check_dataset import check_dataset, conclude
from dlrm_app.daily.rows import Earlier, write_rows
from dlrm_app.dataset.label_counts import label_table
from dlrm_app.dataset.manifest import LabelCounts, LearntLabel, Manifest, read_manifest, write_manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.files import checksum
from dlrm_app.journal import Journal
from tests.labelled_log import LABELS as LABELS_LINE
from tests.labelled_log import describe_labels, draw_labelled
from tests.preprocessing.running import content, make, rejects_of, run, table_of
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
        expected = weights[positive].sum(), weights[known].sum()
        counts = manifest.splits["train"].labels[label.name]
        assert (counts.weights is not None, counts.negatives is not None) == (is_weighted, share < 1)
        once = np.where(table["clicked"].to_numpy() == 1, 1, 1 / share)
        unweighted = manifest.without_weights().clicks_and_rows("train", label=label)
        assert unweighted == pytest.approx((once[positive].sum(), once[known].sum()), rel=1e-11)
        as_in_loss = manifest.without_weights().clicks_and_rows("train", label=label, all_negatives=False)
        assert as_in_loss == (positive.sum(), known.sum())


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
        assert "labels" not in manifest.config["dataset"]
    assert content(log / "one") == content(log / "list")


def test_rows_without_labels_have_none(log: Path) -> None:
    rows = draw_labelled(200)[0]
    write_csv(log / "unlabelled.csv", rows.drop_columns(["clicked", "like", "order"]))
    made(log, "out", "log.csv")
    given = ["encoding=from_dataset", f"encoding.path={log}/out", "input.unlabelled=[test]"]
    manifest = run(log / "new", f"dataset={log}/log.yaml", *given, f"input.test={log}/unlabelled.csv")
    assert (manifest.label, manifest.labels, manifest.splits["test"].labels) == (None, [], {})


def test_an_entry_that_is_no_label_is_refused_by_its_place(log: Path) -> None:
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
    "[clicked, {like: {loss_weight: 0}}]": ("like: loss_weight", "must be a number above 0"),
    "[clicked, {like: {loss_weight: many}}]": ("like: loss_weight", "must be a number above 0"),
    "[clicked, {like: {loss_weight: true}}]": ("like: loss_weight", "must be a number above 0"),
    "[{clicked: {loss_weight: 2}}]": (
        "clicked: loss_weight",
        "weighs a label against others, and there are none",
    ),
    "[clicked, {like: {weight: 2}}]": ("like: weight", "is not a key of a label"),
}


@pytest.mark.parametrize("labels", REFUSED)
def test_what_describes_no_labels_is_refused_by_name(log: Path, labels: str) -> None:
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


def test_a_dataset_with_one_label_has_no_word_of_others(log: Path) -> None:
    """Its manifest is what it was before there could be several."""
    manifest = made(log, "out", "log.csv", "dataset.labels=null", "dataset.label=clicked")
    assert "labels" not in json.loads((log / "out" / "manifest.json").read_text())
    assert "labels" not in manifest.config["dataset"]
    assert "order" not in table_of(manifest).schema.names


ALL_ROLES = [
    "{name: like, role: label}",
    "{name: shown_at, role: time, kind: seconds}",
    "{name: order, role: label}",
    "{name: clicked, role: label}",
    "{name: importance, role: weight}",
    "{name: age, role: dense, kind: float}",
    "{name: shop, role: sparse, kind: integer}",
    "{name: user, role: sparse, kind: integer}",
]
DERIVED = "derived: [{name: hour, kind: hour, of: shown_at}]"


def all_roles(num_rows: int, seed: int = 0) -> pa.Table:
    """Rows with times and weights, a click that is not the first column, and orders that are missing at times."""
    rows = draw_labelled(num_rows, seed)[0]
    random = np.random.default_rng(seed)
    rows = rows.append_column("shown_at", pa.array(random.integers(0, 10**9, num_rows)))
    orders = pa.array(rows["order"].to_pylist(), mask=random.random(num_rows) < 0.1)
    rows = rows.set_column(rows.column_names.index("order"), "order", orders)
    return rows.select([column.partition(":")[2].partition(",")[0].strip() for column in ALL_ROLES])


@pytest.mark.parametrize("header", ["true", "false"])
@pytest.mark.parametrize("quote", ["", "quote: '\"'"])
def test_labels_lie_beside_weights_and_times(tmp_path: Path, header: str, quote: str) -> None:
    """Read by name or by position, in text and in Parquet."""
    path = describe(tmp_path, LABELS_LINE, DERIVED, quote, columns=ALL_ROLES)
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


def test_rows_with_a_label_and_without_its_given_are_counted(log: Path) -> None:
    """They are kept, and the summary warns; missing ones do not count."""
    rows = draw_labelled(6)[0]
    rows = rows.set_column(0, "clicked", pa.array([0, 0, 1, 0, 1, 0]))
    rows = rows.set_column(2, "order", pa.array([1, 1, 1, 0, 0, None]))
    write_csv(log / "few.csv", rows)
    given = [f"dataset={log}/log.yaml", *HASH, f"input.train={log}/few.csv"]
    dataset = make(log / "out", *given)
    train = dataset.manifest.splits["train"]
    assert (train.rows, train.labels["order"].without_given, train.labels["like"].without_given) == (6, 2, 0)
    assert "warning: 2 of train's rows have order 1 and clicked 0" in str(dataset)
    dataset = make(log / "other", *given, "dataset.labels=[clicked,order]")
    assert dataset.manifest.splits["train"].labels["order"].without_given == 0
    assert "warning" not in str(dataset)


WAYS = {
    "plain": [],
    "full shuffle": ["shuffle=full", "layout.shuffled_shard_rows=3000"],
    "by content": ["shuffle=block", "split.by=content", "split.val=0.2", "dense.target_columns=[shop]"],
}


@pytest.mark.parametrize("way", WAYS)
def test_interruptions_end_in_the_same_bytes(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(tmp_path, LABELS_LINE, DERIVED, columns=ALL_ROLES)
    write_csv(tmp_path / "log.csv", all_roles(40_000))
    keys = [*WAYS[way], "sampling.negatives=0.5", "threads=1", "layout.unit_mib=1"]
    made(tmp_path, "whole", "log.csv", *keys)
    commit, left = Journal.commit, 0

    def commit_or_die(self: Journal, name: str, record: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        commit(self, name, record)

    monkeypatch.setattr(Journal, "commit", commit_or_die)
    interruptions = 0
    while not (tmp_path / "pieces" / "manifest.json").exists():
        left = 1
        with suppress(KeyboardInterrupt):
            made(tmp_path, "pieces", "log.csv", *keys)
        interruptions += 1
    assert interruptions > 2
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


@pytest.mark.parametrize("shuffle", ["none", "block", "full"])
def test_labels_stay_with_their_rows(tmp_path: Path, shuffle: str) -> None:
    describe(tmp_path, LABELS_LINE, DERIVED, columns=ALL_ROLES)
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


def test_encodings_do_not_depend_on_further_labels(log: Path) -> None:
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


def test_files_without_a_further_label_are_named(log: Path) -> None:
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
    rule = "is timestamp[ms], which a further label cannot be read from: it takes numbers or strings or true or false"
    with refused(ConfigError, f"{log}/times.parquet: column like", rule):
        made(log, "out", "times.parquet")


@pytest.mark.parametrize("change", ["value", "count"])
def test_check_names_labels_that_are_not_as_the_manifest_says(log: Path, change: str) -> None:
    describe_labels(log, weighted=True)
    manifest = made(log, "out", "log.csv", "split.val=0.2", "sampling.negatives=0.5")
    findings = conclude(check_dataset(log / "out"))
    assert [cell for row in label_table(manifest)[1] for cell in row[:2]] == [
        "train", "order", "train", "like", "val", "order", "val", "like",
    ]  # fmt: skip
    assert all(label in str(findings) for label in ("order", "like"))
    train = manifest.splits["train"]
    if change == "count":
        counts = train.labels["like"]
        train.labels["like"] = replace(counts, positives=counts.positives - 1)
        write_manifest(log / "out", manifest)
        key, rule = "the train split", f"has {counts.positives} positives of like, the manifest says ..."
    else:
        path = log / "out" / train.shards[0].path
        table = pq.read_table(path)
        likes = table["like"].to_numpy().copy()
        likes[7] = 2
        pq.write_table(table.set_column(2, table.schema.field("like"), pa.array(likes)), path)
        groups = [
            pq.read_metadata(path).row_group(i).num_rows for i in range(pq.read_metadata(path).num_row_groups)
        ]
        train.shards[0] = replace(
            train.shards[0], bytes=path.stat().st_size, checksum=checksum(path), row_groups=groups
        )
        write_manifest(log / "out", manifest)
        key, rule = train.shards[0].path, "is wrong in column like: 1 labels are neither 0 nor 1, nor NaN..."
    with refused(DataError, key, rule):
        conclude(check_dataset(log / "out"))


def test_rows_of_days_keep_their_labels_and_counts(tmp_path: Path) -> None:
    describe(tmp_path, LABELS_LINE, DERIVED, columns=ALL_ROLES)
    datasets = []
    for number in range(2):
        write_csv(tmp_path / f"{number}.csv", all_roles(ROWS, seed=number))
        keys = ["split.val=0.2", "dataset.negatives_kept=0.5"]
        datasets.append(made(tmp_path, str(number), f"{number}.csv", *keys))
    first, second = datasets
    earlier = [Earlier(date(2026, 1, 1), first, "train", 0.25)]
    write_rows(second, date(2026, 1, 2), earlier, tmp_path / "rows")
    rows = read_manifest(tmp_path / "rows")
    assert rows.labels == second.labels
    for split in rows.splits:
        table = table_of(rows, split)
        weights = table["importance"].to_numpy().astype(float)
        weights = np.where(table["clicked"].to_numpy() == 1, weights, 2 * weights)
        for label in rows.further_labels:
            values = table[label.name].to_numpy()
            expected = weights[values == 1].sum(), weights[~np.isnan(values)].sum()
            assert rows.clicks_and_rows(split, label=label) == pytest.approx(expected, rel=1e-11)
            counts = rows.splits[split].labels[label.name]
            assert (counts.rows, counts.positives) == ((~np.isnan(values)).sum(), (values == 1).sum())
    assert rows.splits["train"].rows == second.splits["train"].rows + int(0.25 * first.splits["train"].rows)


def test_days_of_other_labels_are_refused(tmp_path: Path) -> None:
    describe(tmp_path, LABELS_LINE, DERIVED, columns=ALL_ROLES)
    write_csv(tmp_path / "log.csv", all_roles(500))
    first = made(tmp_path, "first", "log.csv", "split.val=0.2", "dataset.labels=[clicked,like]")
    second = made(tmp_path, "second", "log.csv", "split.val=0.2")
    with refused(DataError, f"{tmp_path}/first", "has other columns than ... (order)..."):
        write_rows(
            second, date(2026, 1, 2), [Earlier(date(2026, 1, 1), first, "train", 1.0)], tmp_path / "rows"
        )
