"""Ids and dense values under every encoding, against the slow reference or a closed form."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.encoding.encoder import Encoder
from dlrm_app.errors import ConfigError
from dlrm_app.kernels.hashing import mix, reduce_hash
from dlrm_app.logs.sources import text_units
from tests.make_log import make_log
from tests.preprocessing import reference
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import run, spec_of, table_of
from tests.refusals import refused

KAGGLE = spec_of("criteo_kaggle")
ROWS = 400


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.tsv"
    path.write_bytes(make_clicks(ROWS))
    return path


@pytest.fixture
def rows(clicks: Path) -> list[reference.Row]:
    return reference.parse_file(clicks.read_bytes(), KAGGLE)[0]


def test_the_hash_is_the_one_that_the_docs_state() -> None:
    for key in (0, 1, 0xDEADBEEF, (1 << 64) - 1, reference.key_of("žluť")):
        assert int(mix(np.uint64(key))) == reference.mix(key)
        assert (
            int(reduce_hash(np.uint64(reference.mix(key)), 12345)) == (reference.mix(key) >> 32) * 12345 >> 32
        )
    assert reference.mix(1) == 0xB456BCFC34C2CB2C
    assert reference.key_of("a") == 0xAF63DC4C8601EC8C


def test_hashed_ids_spread_evenly() -> None:
    size = 1000
    counts = np.bincount(
        [reference.hash_id(value, size + 1) - 1 for value in range(100 * size)], minlength=size
    )
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert chi_square < size + 5 * math.sqrt(2 * size)


def test_distinct_values_and_collisions_are_counted(
    clicks: Path, rows: list[reference.Row], tmp_path: Path
) -> None:
    manifest = run(tmp_path / "out", f"input.train={clicks}", "encoding.num_embeddings=100")
    for place, column in enumerate(manifest.sparse):
        values = {row.sparse[place] for row in rows} - {None}
        ids = [reference.hash_id(value, 100) for value in values]
        assert column.distinct == len(values)
        assert column.collisions == sum(ids.count(found) > 1 for found in ids)
        assert not column.estimated


def test_top_k_keeps_the_most_frequent_values(
    clicks: Path, rows: list[reference.Row], tmp_path: Path
) -> None:
    manifest = run(tmp_path / "out", f"input.train={clicks}", "encoding=vocab", "encoding.top_k=5")
    table = table_of(manifest)
    for place in range(26):
        values = [row.sparse[place] for row in rows]
        vocabulary = reference.make_vocabulary(values, top_k=5)
        assert table[f"cat_{place}"].to_pylist() == [
            reference.vocab_id(value, vocabulary) for value in values
        ]
        assert manifest.sparse[place].num_embeddings == 7


@pytest.mark.parametrize("transform", ["log1p", "log3", "none"])
def test_dense_transforms_are_the_reference_s(
    clicks: Path, rows: list[reference.Row], tmp_path: Path, transform: str
) -> None:
    table = table_of(run(tmp_path / "out", f"input.train={clicks}", f"dense.transform={transform}"))
    for place in range(13):
        expected = [reference.dense_value(row.dense[place], transform) for row in rows]
        assert table[f"int_{place}"].to_pylist() == expected


def test_standardised_columns_have_mean_0_and_deviation_1(clicks: Path, tmp_path: Path) -> None:
    manifest = run(
        tmp_path / "out", f"input.train={clicks}", "dense.transform=standardize", "split.test=0.25"
    )
    for split in ("train", "test"):
        raw = [row.dense for row in reference.parse_file(clicks.read_bytes(), KAGGLE)[0]]
        part = raw[:300] if split == "train" else raw[300:]
        for place, column in enumerate(manifest.dense):
            present = [values[place] for values in raw[:300] if values[place] is not None]
            mean, deviation = np.mean(present), np.std(present)
            assert column.transform["mean"] == pytest.approx(mean)
            assert column.transform["deviation"] == pytest.approx(deviation)
            expected = [0 if v[place] is None else (v[place] - mean) / deviation for v in part]
            np.testing.assert_allclose(table_of(manifest, split)[column.name], expected, atol=1e-6, rtol=1e-5)


def test_buckets_count_the_boundaries_below(clicks: Path, rows: list[reference.Row], tmp_path: Path) -> None:
    bounds = [0, 5, 50]
    manifest = run(
        tmp_path / "out",
        f"input.train={clicks}",
        "dense.bucket_columns=[int_2]",
        f"dense.bucket_boundaries={bounds}",
    )
    expected = [
        0 if row.dense[2] is None else 1 + sum(bound <= row.dense[2] for bound in bounds) for row in rows
    ]
    assert table_of(manifest)["int_2_bucket"].to_pylist() == expected
    assert manifest.sparse[-1].num_embeddings == 5


def test_a_number_at_a_boundary_has_one_bucket_in_every_type(tmp_path: Path) -> None:
    """float32's 9.99 is below that of text, and its 0.1 above; whole numbers keep all their digits."""
    prices, counts = [0.1, 9.99, 9.98, 12.42], [2**24, 2**24 + 1, 2**24 + 2, 0]
    columns = ["{name: clicked, role: label}", "{name: item, role: sparse, kind: integer}"]
    columns += [
        "{name: price, role: dense, kind: float}",
        "{name: count, role: dense, kind: integer}",
    ]
    rows = {"clicked": [0, 1, 0, 1], "item": [1, 2, 3, 4], "price": prices, "count": counts}
    given = make_log(tmp_path, columns, rows)
    paths = {"text": tmp_path / "log.csv"}
    for kind in (pa.float32(), pa.float64()):
        paths[str(kind)] = tmp_path / f"{kind}.parquet"
        pq.write_table(pa.table({**rows, "price": pa.array(prices, kind)}), paths[str(kind)])
    bounds = f"dense.bucket_boundaries={{price:[0.1,9.99],count:[{2**24 + 1}]}}"
    for name, path in paths.items():
        words = [given[0], f"input.train={path}", "dense.bucket_columns=all", bounds]
        table = table_of(run(tmp_path / name, *words, "shuffle=none"))
        assert table["price_bucket"].to_pylist() == [2, 3, 2, 3], name
        assert table["count_bucket"].to_pylist() == [1, 2, 2, 1], name


def test_synthetic_multi_hot_ids_belong_to_the_first_one(clicks: Path, tmp_path: Path) -> None:
    sizes = [3, 1, *[2] * 24]
    one_hot = table_of(run(tmp_path / "one", f"input.train={clicks}", "encoding.num_embeddings=100"))
    manifest = run(
        tmp_path / "many", f"input.train={clicks}", "encoding.num_embeddings=100", f"multi_hot.sizes={sizes}"
    )
    many = table_of(manifest)
    assert many["cat_1"] == one_hot["cat_1"]
    for place in (0, 2, 25):
        salt = reference.mix(place + 1)
        expected = [
            [found, *[reference.mix(salt ^ (found | j << 32)) >> 32 for j in range(1, sizes[place])]]
            for found in one_hot[f"cat_{place}"].to_pylist()
        ]
        expected = [[row[0], *[value * 100 >> 32 for value in row[1:]]] for row in expected]
        assert many[f"cat_{place}"].to_pylist() == expected
        assert manifest.sparse[place].multi_hot


def test_new_days_get_the_same_ids(clicks: Path, rows: list[reference.Row], tmp_path: Path) -> None:
    first = run(
        tmp_path / "first",
        f"input.train={clicks}",
        "encoding=vocab",
        "encoding.min_count=2",
        "dense.transform=standardize",
    )
    (tmp_path / "day_2.tsv").write_bytes(make_clicks(ROWS, seed=9))
    second = run(
        tmp_path / "second",
        f"input.test={tmp_path}/day_2.tsv",
        "encoding=from_dataset",
        f"encoding.path={tmp_path}/first",
    )
    later, _ = reference.parse_file((tmp_path / "day_2.tsv").read_bytes(), KAGGLE)
    table = table_of(second, "test")
    for place in range(26):
        vocabulary = reference.make_vocabulary([row.sparse[place] for row in rows], min_count=2)
        expected = [reference.vocab_id(row.sparse[place], vocabulary) for row in later]
        assert table[f"cat_{place}"].to_pylist() == expected
    assert [column.transform for column in second.dense] == [column.transform for column in first.dense]
    assert (tmp_path / "second/vocab/cat_0.parquet").read_bytes() == (
        tmp_path / "first/vocab/cat_0.parquet"
    ).read_bytes()
    assert second.sparse[0].distinct == len({row.sparse[0] for row in later} - {None})


@pytest.mark.slow
def test_a_dataset_encodes_a_row_again_at_serving_time(clicks: Path, tmp_path: Path) -> None:
    from dlrm_app.logs.parser import Parser

    run(
        tmp_path / "out",
        f"input.train={clicks}",
        "encoding=vocab",
        "multi_hot.sizes=2",
        "dense.bucket_columns=all",
    )
    manifest = read_manifest(tmp_path / "out")
    encoder = Encoder(KAGGLE, manifest.dense, manifest.sparse, tmp_path / "out")
    text = clicks.read_bytes()
    parser = Parser(KAGGLE, ROWS)
    parser.parse(np.frombuffer(bytearray(text + bytes(text_units.PADDING)), np.uint8), 0, len(text), ROWS)
    assert encoder.encode(parser.take()).table.to_pylist() == table_of(manifest).to_pylist()


def test_files_without_labels_make_a_split_without_labels(clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_bytes(make_clicks(50, seed=5, labelled=False))
    given = [f"input.train={clicks}", f"input.test={tmp_path}/test.txt"]
    with refused(ConfigError, ".../test.txt", "has one column too few"):
        run(tmp_path / "out", *given)
    manifest = run(tmp_path / "out", *given, "input.unlabelled=[test]")
    assert manifest.label == "label"
    assert manifest.splits["test"].positives is None
    assert "label" not in table_of(manifest, "test").schema.names
    expected = sum(row.label for row in reference.parse_file(clicks.read_bytes(), KAGGLE)[0])
    assert manifest.splits["train"].positives == expected
    with refused(ConfigError, ".../clicks.tsv", "has a label in its first line"):
        run(tmp_path / "other", *given, "input.unlabelled=[train,test]")


def test_the_best_reachable_scores_are_averaged_over_rows(clicks: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_bytes(make_clicks(10, seed=2))
    given = [f"input.train={clicks}", f"input.val={other}"]
    (tmp_path / "clicks.tsv.best.json").write_text(json.dumps({"auc": 0.8, "logloss": 0.5, "rows": 400}))
    assert run(tmp_path / "some", *given).best is None
    (tmp_path / "other.tsv.best.json").write_text(json.dumps({"auc": 0.7, "logloss": 0.4, "rows": 10}))
    best = run(tmp_path / "all", *given).best
    assert best == {"auc": pytest.approx((320 + 7) / 410), "logloss": pytest.approx((200 + 4) / 410)}
    for number, text in enumerate(("{", "[]", '{"auc": {}, "logloss": 1}')):
        (tmp_path / "other.tsv.best.json").write_text(text)
        assert run(tmp_path / f"damaged{number}", *given).best is None
