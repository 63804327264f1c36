"""Unseen and missing values are counted as they are in the files, and rows of the same kind raise no alarm."""

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.splits import ValueCounts
from dlrm_app.encoding.value_shares import (
    LENGTH,
    LIMIT,
    MISSING,
    SIZE,
    UNSEEN,
    ValueCounter,
    ValueWatch,
    add_up,
    deviations,
)
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.raw_rows import RawRows
from tests.preprocessing.running import run, table_of

DESCRIPTION = """
name: visits
delimiter: ","
quote: '"'
header: true
columns:
  - {name: click, role: label}
  - {name: price, role: dense, kind: float}
  - {name: flag, role: sparse, kind: string}
  - {name: user, role: sparse, kind: string}
  - {name: seen, role: sparse, kind: string, separator: "|"}
"""
ROWS = 6000


def draw(rows: int, seed: int) -> pd.DataFrame:
    """Users come and go: a tenth of them were not there before."""
    chance = np.random.default_rng(seed)
    users = np.where(
        chance.random(rows) < 0.1, chance.integers(10**6, 10**9, rows), chance.zipf(1.5, rows) % 900
    )
    lists = ["|".join(map(str, chance.integers(0, 50, length))) for length in chance.integers(0, 7, rows)]
    prices = np.where(chance.random(rows) < 0.2, "", chance.random(rows).round(3).astype(str))
    flags = np.where(chance.random(rows) < 0.05, "", np.where(chance.random(rows) < 0.5, "true", "no"))
    clicks = chance.integers(0, 2, rows)
    return pd.DataFrame({"click": clicks, "price": prices, "flag": flags, "user": users, "seen": lists})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("visits")
    (folder / "visits.yaml").write_text(DESCRIPTION)
    draw(ROWS, 1).to_csv(folder / "log.csv", index=False)
    keys = [f"dataset={folder}/visits.yaml", f"input.train={folder}/log.csv", "split.val=0.25"]
    run(folder / "data", *keys, "encoding=vocab", "encoding.min_count=1", "dense.transform=standardize")
    return read_manifest(folder / "data")


def rows_of(dataset: Manifest) -> RawRows:
    spec = raw_spec(dataset).without_label()
    return RawRows(spec, dataset, [column.name for column in dataset.sparse])


def counts_of(dataset: Manifest, frame: pd.DataFrame) -> dict[str, ValueCounts]:
    """The counts of rows that are encoded as ``dataset``."""
    rows = rows_of(dataset)
    texts = frame.drop(columns="click").astype(str).replace("", None)
    texts["price"] = texts["price"].astype(float)
    texts["seen"] = [each.split("|") if each else [] for each in frame["seen"]]
    for _ in rows.read(pa.Table.from_pandas(texts, preserve_index=False)):
        pass
    return rows.watch.counter.counts()


def test_counts_are_those_of_the_files(dataset: Manifest) -> None:
    """An id of 0 is a missing value, an id of 1 one that the vocabulary lacks; also where values repeat."""
    val, counts = table_of(dataset, "val"), dataset.splits["val"].values
    assert set(counts) == {"price", "flag", "user", "seen"}
    for name in ("flag", "user"):
        ids = val[name].to_numpy()
        found = counts[name]
        assert (found.rows, found.missing, found.unseen) == (
            len(ids),
            int((ids == 0).sum()),
            int((ids == 1).sum()),
        )
        assert found.values == len(ids) - found.missing
    assert counts["user"].unseen > 50
    assert counts["flag"].unseen == 0
    lists = val["seen"].to_pylist()
    lengths = np.array([len(each) for each in lists])
    elements = np.concatenate([each for each in lists if each])
    seen = counts["seen"]
    assert (seen.missing, seen.values, seen.squares) == (
        int((lengths == 0).sum()),
        lengths.sum(),
        (lengths**2).sum(),
    )
    assert seen.unseen == int((elements == 1).sum())
    assert seen.mean_length == pytest.approx(lengths.mean())
    assert seen.length_variance == pytest.approx(lengths.var())
    prices = pd.read_csv(dataset.folder.parent / "log.csv")["price"][-len(ids) :]
    assert counts["price"].missing == prices.isna().sum()


def test_a_sum_of_parts_is_the_count_of_the_whole(dataset: Manifest) -> None:
    frame = draw(1000, 5)
    parts = [counts_of(dataset, frame[start : start + 300]) for start in range(0, 1000, 300)]
    assert add_up(parts) == counts_of(dataset, frame)


def test_good_splits_raise_no_alarm(dataset: Manifest) -> None:
    usual = dataset.usual_values
    assert usual == dataset.splits["val"].values
    for seed, rows in enumerate([*[50] * 10, *[300] * 20, *[1500] * 20]):
        assert deviations(usual, counts_of(dataset, draw(rows, 100 + seed))) == []


def test_sizes_of_numbers_are_those_of_the_shards(dataset: Manifest) -> None:
    prices = table_of(dataset, "val")["price"].to_numpy().astype(np.float64)
    sizes = np.sign(prices) * np.log1p(np.abs(prices))
    counts = dataset.splits["val"].values["price"]
    assert 1000 * sizes.mean() == pytest.approx(counts.mean_size, abs=1)
    assert 1000 * sizes.std() == pytest.approx(np.sqrt(counts.size_variance), abs=1)
    assert dataset.splits["val"].values["flag"].size_squares == 0


def test_counts_that_no_rows_have_are_told(dataset: Manifest) -> None:
    price = dataset.splits["val"].values["price"]
    assert price.can_be
    assert min(price.sizes, dataset.splits["val"].values["flag"].sizes) < 1  # standardized: of both signs
    for change in (
        {"missing": price.rows + 1},
        {"unseen": price.values + 1},
        {"sizes": -(10**9)},
        {"squares": -1},
    ):
        assert not dataclasses.replace(price, **change).can_be


def test_one_large_number_among_zeros_is_no_deviation() -> None:
    zeros = {"a": ValueCounts(10_000, 0, 0, 10_000, 0, 10 * 5000, 10 * 5000**2)}
    assert deviations(zeros, {"a": ValueCounts(30, 0, 0, 30, 0, 5000, 5000**2)}) == []
    assert deviations(zeros, {"a": ValueCounts(1, 0, 0, 1, 0, 5000, 5000**2)}) == []
    found = deviations(zeros, {"a": ValueCounts(30, 0, 0, 30, 0, 30 * 5000, 30 * 5000**2)})
    assert [each.what for each in found] == [SIZE]


@pytest.mark.parametrize("rows", [150, 1500, 20_000])
def test_a_change_of_the_limit_is_not_told_by_chance(rows: int) -> None:
    """Shares of 5% in val and 15% in the rows, each drawn 500 times."""
    val, new = np.random.default_rng(rows).binomial(rows, [[0.05], [0.05 + LIMIT]], (2, 500)).tolist()
    for before, now in zip(val, new, strict=True):
        usual, found = ({"a": ValueCounts(rows, each, each, rows)} for each in (before, now))
        assert deviations(usual, found) == []


def shouted(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(user="u" + frame["user"].astype(str))


CHANGES = {
    "other notation": (shouted, ("user", UNSEEN)),
    "half lost": (lambda f: f.assign(flag=f["flag"].where(f.index % 2 == 0, "")), ("flag", MISSING)),
    "a third new": (lambda f: f.assign(flag=f["flag"].where(f.index % 3 > 0, "maybe")), ("flag", UNSEEN)),
    "long lists": (lambda f: f.assign(seen=f["seen"] + "|1|2|3" * 20), ("seen", LENGTH)),
    "cents": (lambda f: f.assign(price=f["price"].map(lambda p: p and str(100 * float(p)))), ("price", SIZE)),
    "no prices": (lambda f: f.assign(price=""), ("price", MISSING)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [40, 2000])
def test_changes_are_told(dataset: Manifest, change: str, rows: int) -> None:
    apply, expected = CHANGES[change]
    found = deviations(dataset.usual_values, counts_of(dataset, apply(draw(rows, 7))))
    if rows > 40 or change in ("other notation", "no prices", "long lists"):  # the others may be chance
        assert expected in [(each.column, each.what) for each in found]
    assert {each.column for each in found} <= {expected[0]}


def test_what_is_all_unseen_is_told_of_few_rows_and_without_usual_rows() -> None:
    usual = {"a": ValueCounts(1000, 0, 0, 1000)}
    assert deviations(usual, {"a": ValueCounts(1, 0, 1, 1)}) == []
    assert [each.what for each in deviations(usual, {"a": ValueCounts(2, 0, 2, 2)})] == [UNSEEN]
    assert deviations({}, {"a": ValueCounts(10, 0, 10, 10)}) == []
    assert [each.usual for each in deviations({}, {"a": ValueCounts(100, 0, 100, 100)})] == [None]
    often = {"a": ValueCounts(1000, 0, 950, 1000)}
    assert deviations(often, {"a": ValueCounts(20, 0, 20, 20)}) == []
    assert len(deviations(often, {"a": ValueCounts(1000, 0, 1000, 1000)})) == 1


def test_a_deviation_is_told_once_and_good_years_hide_no_bad_day(
    dataset: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlrm_app.encoding.value_shares.RECENT_ROWS", 1000)
    watch = ValueWatch(dataset.usual_values, ValueCounter(dataset.dense, dataset.sparse))
    places = {column.name: number for number, column in enumerate([*dataset.dense, *dataset.sparse])}
    for _ in range(100):
        watch.counter.sums += sums_of(dataset, 1000)
        assert watch.news() == []
    bad = sums_of(dataset, 1000)
    bad[places["flag"], 2] = bad[places["flag"], 3]
    watch.counter.sums += bad
    assert [(each.column, each.what) for each in watch.news()] == [("flag", UNSEEN)]
    watch.counter.sums += bad
    assert watch.news() == []


def sums_of(dataset: Manifest, rows: int) -> NDArray[np.int64]:
    """The usual counts, of about so many rows."""
    usual = dataset.usual_values
    sums = [dataclasses.astuple(usual[column.name]) for column in [*dataset.dense, *dataset.sparse]]
    return np.array(sums) * rows // ROWS * 4
