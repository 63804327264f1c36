"""What is measured of a day: the population stability index, the bins that it is made of, rows and files by hour."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.dataset.splits import ManifestSource
from dlrm_app.encoding.row_samples import SAMPLE_FILE, RowSample
from dlrm_app.errors import DataError
from dlrm_app.tools.daily.measure import (
    PROFILE,
    asked_rows,
    binned,
    columns_of,
    hours_of,
    known_rows,
    missing_shares,
    profile_of,
    shift_of,
    shifts,
    write_measures,
)
from tests.labelled_log import describe_labels, draw_labelled, made
from tests.loader.dataset_fixture import write_dataset
from tests.make_log import write_csv
from tests.preprocessing.running import run
from tests.preprocessing.test_vectors import write_log
from tests.refusals import refused


@given(st.integers(0, 2**32), st.integers(300, 5000), st.integers(300, 5000))
def test_chance_alone_shifts_nothing(seed: int, rows: int, others: int) -> None:
    draw = np.random.default_rng(seed)
    shares = draw.dirichlet(np.full(20, 5.0))
    found = shift_of(*(draw.multinomial(count, shares).tolist() for count in (rows, others)))
    assert found < 0.05


def test_the_shift_is_the_population_stability_index() -> None:
    before, now = [5_000_000, 3_000_000, 2_000_000], [2_000_000, 3_000_000, 5_000_000]
    assert shift_of(before, now) == pytest.approx(2 * 0.3 * math.log(2.5), abs=1e-4)
    assert shift_of(before, before) == 0.0


def test_bins_hold_the_rows_that_they_should(tmp_path: Path) -> None:
    write_dataset(tmp_path / "first", rows={"train": 1500, "val": 100}, seed=1)
    write_dataset(tmp_path / "second", rows={"train": 900, "val": 100}, seed=2)
    first, second = (read_manifest(tmp_path / name) for name in ("first", "second"))
    profile = profile_of(first)
    found = {name: binned(values, profile[name].bounds) for name, values in columns_of(second)}
    files = [second.folder / shard.path for shard in second.splits["train"].shards]
    table = [pq.ParquetFile(path).read() for path in files]
    for column in second.dense:
        values = np.concatenate([part[column.name].to_numpy() for part in table])
        bounds = np.array([-np.inf, *profile[column.name].bounds, np.inf], np.float32)
        expected = [int(((values > low) & (values <= high)).sum()) for low, high in pairwise(bounds)]
        assert found[column.name].counts == expected
    for column in second.sparse:
        ids = [value for part in table for value in part[column.name].to_pylist()]
        flat = [each for value in ids for each in (value if isinstance(value, list) else [value])]
        top = profile[column.name].bounds
        rest = sum(each not in top for each in flat)
        assert found[column.name].counts == [*(flat.count(int(each)) for each in top), rest]


def test_days_of_one_kind_are_not_shifted(tmp_path: Path) -> None:
    for name, seed in (("first", 1), ("second", 2)):
        write_dataset(tmp_path / name, rows={"train": 1500, "val": 100}, seed=seed)
    (tmp_path / "day").mkdir()
    write_measures(read_manifest(tmp_path / "first"), tmp_path / "day")
    found = shifts(read_manifest(tmp_path / "second"), [tmp_path / "day"])
    assert found.keys() >= {column.name for column in read_manifest(tmp_path / "second").dense}
    assert max(found.values()) < 0.1


def test_the_shift_is_measured_from_the_most_similar_day(tmp_path: Path) -> None:
    days = [tmp_path / name for name in ("usual", "odd")]
    for name, seed in (("before", 1), ("now", 2)):
        write_dataset(tmp_path / name, rows={"train": 1500, "val": 100}, seed=seed)
    for day in days:
        day.mkdir()
        write_measures(read_manifest(tmp_path / "before"), day)
    profile = json.loads((days[1] / PROFILE).read_text())
    profile["i0"]["counts"] = [1500, *[0] * (len(profile["i0"]["counts"]) - 1)]
    (days[1] / PROFILE).write_text(json.dumps(profile))
    manifest = read_manifest(tmp_path / "now")
    assert shifts(manifest, days[1:])["i0"] > 1
    assert shifts(manifest, days) == shifts(manifest, days[::-1]) == shifts(manifest, days[:1])


def test_shares_of_clicks_are_not_compared_between_days(tmp_path: Path) -> None:
    """Those of the first day leave each row's own fold out, those of later days do not."""
    write_dataset(tmp_path / "set", rows={"train": 300, "val": 30})
    manifest = read_manifest(tmp_path / "set")
    first, *others = manifest.dense
    shares = replace(first, transform={"kind": "target", "column": "c0"})
    found = profile_of(replace(manifest, dense=[shares, *others]))
    assert found.keys() == profile_of(manifest).keys() - {first.name}


def test_hours_are_taken_from_the_folders(tmp_path: Path) -> None:
    write_dataset(tmp_path / "day", rows={"train": 100, "val": 10})
    manifest = read_manifest(tmp_path / "day")
    paths = ["log/dt=2026-11-01/hour=01/a", "log/dt=2026-11-01/hour=00/b", "log/dt=2026-11-01/hour=1/c"]
    sources = [
        ManifestSource(path, "train", 1, "crc32:0", rows, 0)
        for path, rows in zip(paths, (5, 6, 7), strict=True)
    ]
    assert hours_of(replace(manifest, sources=sources)) == {"00": [6, 1], "01": [12, 2]}
    assert (
        hours_of(replace(manifest, sources=[*sources, ManifestSource("log/d", "train", 1, "crc32:0", 1, 0)]))
        == {}
    )


def test_copies_within_a_day_are_known_rows(tmp_path: Path) -> None:
    hashes = np.random.default_rng(0).integers(2**63, size=2000, dtype=np.uint64)
    days = {
        "first": hashes[:1000],
        "second": np.tile(hashes[1000:], 2),
        "third": hashes[[*range(500, 1500), 600]],
    }
    for name, rows in days.items():
        (tmp_path / name).mkdir()
        RowSample.of(rows).write(tmp_path / name / SAMPLE_FILE)
    assert known_rows(tmp_path / "first", []) == 0.0
    assert known_rows(tmp_path / "second", [tmp_path / "first"]) == 0.5
    assert known_rows(tmp_path / "third", [tmp_path / "first"]) == pytest.approx(501 / 1001)
    (tmp_path / "first" / SAMPLE_FILE).unlink()
    assert known_rows(tmp_path / "first", []) is None


def test_a_damaged_sample_of_an_earlier_day_has_a_cure(tmp_path: Path) -> None:
    hashes = np.arange(10, dtype=np.uint64)
    for day in ("first", "second", "third"):
        (tmp_path / day).mkdir()
        RowSample.of(hashes).write(tmp_path / day / SAMPLE_FILE)
    damaged = tmp_path / "first" / SAMPLE_FILE
    damaged.write_bytes(b"")
    earlier = [tmp_path / "first", tmp_path / "second"]
    with refused(DataError, str(damaged), "cannot be read (...)", cure="...delete this file..."):
        known_rows(tmp_path / "third", earlier)
    damaged.unlink()
    assert known_rows(tmp_path / "third", earlier) == 1.0


def test_a_given_label_is_missing_where_its_condition_holds(tmp_path: Path) -> None:
    describe_labels(tmp_path)
    rows = draw_labelled(2000)[0]
    is_open = (np.arange(2000) % 2 == 0) & (rows["clicked"].to_numpy() == 1)
    for name, mask in (("known", np.zeros(2000, bool)), ("open", is_open)):
        place = rows.column_names.index("order")
        orders = pa.array(rows["order"].to_numpy(), mask=mask)
        write_csv(tmp_path / f"{name}.csv", rows.set_column(place, "order", orders))
    known, half_open = (made(tmp_path, name, f"{name}.csv") for name in ("known", "open"))
    clicks = int(rows["clicked"].to_numpy().sum())
    assert asked_rows(half_open) == {"order|clicked": clicks, "like": 2000}
    assert missing_shares(known)["order|clicked"] == 0
    assert missing_shares(half_open)["order|clicked"] == pytest.approx(is_open.sum() / clicks)
    assert missing_shares(half_open)["like"] == pytest.approx(0.3, abs=0.05)


def test_vectors_are_missing_by_row_and_by_item(tmp_path: Path) -> None:
    """A share of 1 is a column that went missing, which the gate's rule for missing values holds back."""
    manifest = run(tmp_path / "out", *write_log(tmp_path, 1400), "encoding=vocab", "rejects.max_fraction=0.1")
    shares = missing_shares(manifest)
    assert shares["query"] == pytest.approx(1 / 7, abs=0.01)  # every seventh row
    assert shares["item_text"] == pytest.approx(1 / 2, abs=0.05)  # the file has half of the items
