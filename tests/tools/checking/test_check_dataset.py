"""dlrm-check: a whole dataset passes, every damage is named, and the figures are a plain count's."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.checksums import checksum
from dlrm_app.dataset.manifest import Manifest, read_manifest, write_manifest
from dlrm_app.errors import DataError
from dlrm_app.loader.reader import SplitReader
from dlrm_app.tools.checking.check_dataset import check_dataset, conclude
from tests import dwell_log
from tests.loader.dataset_fixture import write_dataset
from tests.make_log import write_csv
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import run, table_of
from tests.weighted_log import describe, draw_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "dataset", 3000, one_hot=(50, 1000), multi_hot=(30,))
    return tmp_path / "dataset"


def problems_of(folder: Path) -> str:
    findings = check_dataset(folder, num_threads=2)
    with pytest.raises(DataError) as caught:
        conclude(findings)
    return str(caught.value)


def rewrite(folder: Path, name: str, change: dict[str, pa.Array]) -> None:
    """Replaces columns of a shard, and makes its entry in the manifest fit, so that only the values are wrong."""
    path = folder / name
    table = pq.read_table(path)
    for column, values in change.items():
        table = table.set_column(table.schema.get_field_index(column), column, values)
    pq.write_table(table, path, row_group_size=256)
    manifest = read_manifest(folder)
    for split in manifest.splits.values():
        for place, shard in enumerate(split.shards):
            if shard.path == name:
                split.shards[place] = replace(shard, bytes=path.stat().st_size, checksum=checksum(path))
    write_manifest(folder, manifest)


def column_of(folder: Path, name: str, column: str) -> np.ndarray:
    return pq.read_table(folder / name)[column].to_numpy().copy()


def test_a_whole_dataset_passes_and_is_not_changed(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert check_dataset(folder).problems == []
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_figures_match_a_plain_count(folder: Path) -> None:
    findings = check_dataset(folder, num_threads=3)
    manifest = read_manifest(folder)
    tables = {split: table_of(manifest, split).to_pydict() for split in manifest.splits}
    for name in ("c0", "c1", "m0"):
        ids = {
            split: [i for value in table[name] for i in (value if isinstance(value, list) else [value])]
            for split, table in tables.items()
        }
        counts = Counter(ids["train"])
        found = findings.sparse[name]
        assert found.ids_used == len(counts)
        for k in (1, 10, 25):
            top = sum(count for _, count in counts.most_common(k))
            assert found.top(k) == pytest.approx(top / len(ids["train"]), rel=1e-12)
        for split in ("val", "test"):
            unseen = sum(i not in counts for i in ids[split])
            assert findings.unseen_share(name, split) == unseen / len(ids[split])
    for name in ("i0", "i1", "i2"):
        values, found_dense = np.array(tables["train"][name], np.float32), findings.dense[name]
        assert (found_dense.low, found_dense.high) == (values.min(), values.max())
        assert found_dense.mean == pytest.approx(values.astype(np.float64).mean(), rel=1e-12)
    for split, table in tables.items():
        assert findings.rows[split] == len(table["label"])
        assert findings.positives[split] == sum(table["label"])


def test_little_memory_counts_small_tables_and_samples_rows(tmp_path: Path) -> None:
    lines = make_clicks(3000).splitlines(keepends=True)
    (tmp_path / "train.tsv").write_bytes(b"".join(lines))
    (tmp_path / "val.tsv").write_bytes(b"".join(lines[:1500]))
    inputs = [f"input.{split}={tmp_path}/{split}.tsv" for split in ("train", "val")]
    run(tmp_path / "out", "dataset=criteo_kaggle", *inputs, "encoding.num_embeddings=2000")
    much, little = check_dataset(tmp_path / "out"), check_dataset(tmp_path / "out", memory_gib=5e4 / 2**30)
    assert little.problems == []
    assert 0 < len(little.sparse) < len(much.sparse) == 26
    assert all(found.top(10) == much.sparse[name].top(10) for name, found in little.sparse.items())
    assert little.unseen_share("cat_25", "val") is None
    exact, estimated = much.overlap["val"], little.overlap["val"]
    assert (exact.repeated, exact.is_estimate) == (1500, False)
    assert estimated.is_estimate
    assert estimated.repeated == pytest.approx(1500, rel=0.2)


def test_every_damaged_file_is_named(folder: Path) -> None:
    flipped = folder / "train/part-00001.parquet"
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    with (folder / "train/part-00002.parquet").open("ab") as file:
        file.write(b"x")
    (folder / "val/part-00000.parquet").unlink()
    message = problems_of(folder)
    assert "train/part-00001.parquet has other bytes than were written" in message
    assert "train/part-00002.parquet has" in message
    assert "val/part-00000.parquet is missing" in message
    assert "has 3 problems: " in message


def test_every_wrong_value_is_named(folder: Path) -> None:
    name = "train/part-00000.parquet"
    ids, dense, labels = (column_of(folder, name, column) for column in ("c0", "i1", "label"))
    ids[[3, 700]], dense[5], labels[9] = (50, -1), np.nan, 2
    nothing = pa.array([None, *column_of(folder, name, "c1")[1:].tolist()], pa.int32())
    change = {
        "c0": pa.array(ids),
        "i1": pa.array(dense),
        "label": pa.array(labels),
        "i0": pa.array(column_of(folder, name, "i0").astype(np.float64)),
        "c1": nothing,
    }
    rewrite(folder, name, change)
    message = problems_of(folder)
    assert f"{name} is wrong in column c0: 2 ids are outside its table of 50 rows, such as 50" in message
    assert f"{name} is wrong in column i1: 1 values are not finite, such as nan" in message
    assert f"{name} is wrong in column label: 1 labels are neither 0 nor 1, such as 2" in message
    assert f"{name} is wrong in column i0: it is double, the manifest promises float" in message
    assert f"{name} is wrong in column c1: 1 values are missing" in message


def test_counts_that_disagree_with_the_manifest_are_named(folder: Path) -> None:
    labels = column_of(folder, "test/part-00000.parquet", "label")
    labels[np.flatnonzero(labels)[0]] = 0
    rewrite(folder, "test/part-00000.parquet", {"label": pa.array(labels)})
    manifest = read_manifest(folder)
    manifest.splits["val"] = replace(manifest.splits["val"], rejects=3)
    write_manifest(folder, manifest)
    message = problems_of(folder)
    positives = manifest.splits["test"].positives
    assert f"the test split has {positives - 1} positives, the manifest says {positives}" in message
    assert "rejects.jsonl holds 0 lines, the manifest says that 3 were left out" in message


def preprocessed(tmp_path: Path, *options: str) -> Manifest:
    (tmp_path / "clicks.tsv").write_bytes(make_clicks(2000, bad_every=50))
    limits = ("rejects.max_fraction=0.1", "split.val=0.2", "split.test=0.1")
    return run(
        tmp_path / "out", "dataset=criteo_kaggle", f"input.train={tmp_path}/clicks.tsv", *limits, *options
    )


@pytest.mark.parametrize(
    "options",
    [
        ("encoding.num_embeddings=100",),
        ("encoding=vocab", "encoding.min_count=2", "shuffle=full"),
        ("dense.transform=standardize", "dense.bucket_columns=all", f"multi_hot.sizes={[3] * 26}"),
    ],
)
def test_a_preprocessed_dataset_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    preprocessed(tmp_path, *options)
    assert check_dataset(tmp_path / "out").problems == []


def test_files_of_encodings_that_are_not_as_written_are_named(tmp_path: Path) -> None:
    preprocessed(tmp_path, "encoding=vocab", "dense.target_columns=[cat_3]")
    vocabularies = tmp_path / "out" / "vocab"
    table = pq.read_table(vocabularies / "cat_0.parquet")
    pq.write_table(table.slice(0, len(table) - 1), vocabularies / "cat_0.parquet")
    (vocabularies / "cat_2.parquet").unlink()
    (tmp_path / "out" / "target" / "cat_3.parquet").write_bytes(b"PAR1")
    message = problems_of(tmp_path / "out")
    assert "vocab/cat_0.parquet has other bytes than were written" in message
    assert "vocab/cat_2.parquet is missing" in message
    assert "target/cat_3.parquet has other bytes than were written" in message
    assert "has 3 problems: " in message


def test_rows_that_train_has_as_well_are_counted(tmp_path: Path) -> None:
    lines = make_clicks(1000).splitlines(keepends=True)
    other = [b"1" if line[:1] == b"0" else b"0" for line in lines[:5]]
    (tmp_path / "train.tsv").write_bytes(b"".join(lines[:900] + lines[:30]))  # 30 twice
    flipped = b"".join(label + line[1:] for label, line in zip(other, lines[:5], strict=True))
    (tmp_path / "val.tsv").write_bytes(b"".join(lines[880:]) + flipped)  # 20 with label, 5 with another label
    (tmp_path / "test.tsv").write_bytes(b"".join(lines[900:]))
    inputs = [f"input.{split}={tmp_path}/{split}.tsv" for split in ("train", "val", "test")]
    run(tmp_path / "out", "dataset=criteo_kaggle", *inputs)
    overlap = check_dataset(tmp_path / "out").overlap
    assert {split: found.repeated for split, found in overlap.items()} == {"train": 60, "val": 25, "test": 0}
    assert overlap["val"].expected == pytest.approx(60 / 930 * 125)
    assert [split for split, found in overlap.items() if found.is_suspicious] == []


@pytest.mark.parametrize("columns", [[], ["dense.target_columns=[cat_0]"]])
def test_a_leak_of_training_rows_is_pointed_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, columns: list[str]
) -> None:
    """Also where a training row is encoded without its own click, and the same row of val with it."""
    lines = make_clicks(600).splitlines(keepends=True)
    (tmp_path / "train.tsv").write_bytes(b"".join(lines))
    (tmp_path / "val.tsv").write_bytes(b"".join(lines[:200]))
    inputs = [f"input.{split}={tmp_path}/{split}.tsv" for split in ("train", "val")]
    run(tmp_path / "out", "dataset=criteo_kaggle", *inputs, *columns)
    findings = conclude(check_dataset(tmp_path / "out"))
    assert "note: val share more rows with train than repeats within train explain" in str(findings)


def test_unlabelled_splits_and_no_train_split_are_checked(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_bytes(make_clicks(300, labelled=False))
    options = (f"input.test={tmp_path}/test.tsv", "input.unlabelled=[test]")
    run(tmp_path / "out", "dataset=criteo_kaggle", *options)
    findings = check_dataset(tmp_path / "out")
    assert findings.studied == ["test"]
    assert findings.overlap == {}


def test_element_weights_that_fit_no_list_are_named(tmp_path: Path) -> None:
    """In dlrm-check, and where rows are read."""
    dwell_log.describe(tmp_path)
    write_csv(tmp_path / "log.csv", dwell_log.draw_rows(200))
    run(tmp_path / "out", f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.csv")
    findings = check_dataset(tmp_path / "out")
    assert findings.problems == []
    assert "seen: elements count by dwell" in [*map(str, findings.paragraphs())]
    name = "train/part-00000.parquet"
    good = pq.read_table(tmp_path / "out" / name)["dwell"].to_pylist()
    (place, *_) = [number for number, row in enumerate(good) if row]
    for value in (-1.0, np.nan, np.inf):
        wrong = [[value, *row[1:]] if number == place else row for number, row in enumerate(good)]
        assert "dwell: 1 weights are negative or not finite" in problems_with(tmp_path / "out", name, wrong)
    longer = [[*row, 1.0] if number == place else row for number, row in enumerate(good)]
    rule = "dwell: 1 lists have other numbers of elements than those of seen"
    assert rule in problems_with(tmp_path / "out", name, longer)
    reader = SplitReader(read_manifest(tmp_path / "out"), "train", ["seen"])
    with pytest.raises(DataError, match=rule):
        reader.decode(0)


def problems_with(folder: Path, name: str, dwell: list[list[float]]) -> str:
    rewrite(folder, name, {"dwell": pa.array(dwell, pa.list_(pa.float32()))})
    return problems_of(folder)


def test_invalid_weights_are_named(tmp_path: Path) -> None:
    describe(tmp_path)
    write_csv(tmp_path / "log.csv", draw_rows(200)[0])
    given = [f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.csv"]
    run(tmp_path / "out", *given, "encoding.num_embeddings=100")
    findings = check_dataset(tmp_path / "out")
    assert findings.problems == []
    assert any("train: rows count by importance, " in str(each) for each in findings.paragraphs())
    name, good = (
        "train/part-00000.parquet",
        column_of(tmp_path / "out", "train/part-00000.parquet", "importance"),
    )
    for place, value in enumerate([-1.0, np.nan, np.inf]):
        weights = good.copy()
        weights[place] = value
        rewrite(tmp_path / "out", name, {"importance": pa.array(weights)})
        assert "importance: 1 weights are negative or not finite" in problems_of(tmp_path / "out")
    rewrite(tmp_path / "out", name, {"importance": pa.array(good * np.float32(2))})
    assert "the train split has rows of weight " in problems_of(tmp_path / "out")
