"""What polars decodes is what Arrow reads from the same rows; what polars refuses is left to Arrow."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from dlrm_app.logs.sources import parquet_units
from dlrm_app.logs.sources.feeds import BundleFeed, unit_feeds
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.parquet_decoders import decode_plain, is_plain
from dlrm_app.logs.sources.parquet_units import ParquetFeed, ParquetUnit, polars_is_preferred
from dlrm_app.logs.sources.source import DamagedFileError
from tests.preprocessing.running import run
from tests.refusals import refused

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "uint16": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=40)),
    "large_string": (pa.large_string(), st.sampled_from(["", "a", "a" * 12, "ö" * 13, "\x00"])),
}
assert all(is_plain(kind) for kind, _ in KINDS.values())


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    num_rows = draw(st.integers(1, 60))
    columns = {
        name: pa.array(draw(st.lists(st.none() | values, min_size=num_rows, max_size=num_rows)), kind)
        for name, (kind, values) in KINDS.items()
    }
    return pa.table(columns)


@settings(max_examples=60)
@given(tables(), st.integers(1, 40), st.sampled_from(["none", "snappy", "zstd"]), st.booleans(), st.data())
def test_any_rows_equal_the_rows_that_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory,
    table: pa.Table,
    group: int,
    codec: str,
    is_numbered: bool,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("plain") / "a*[1]=.parquet"  # no glob, and no key of a partition
    options = {"use_dictionary": is_numbered, "data_page_size": 64}
    pq.write_table(table, path, row_group_size=group, compression=codec, **options)
    start = data.draw(st.integers(0, len(table) - 1))
    stop = data.draw(st.integers(start + 1, len(table)))
    names = data.draw(st.permutations(table.column_names))[:4]
    found = decode_plain([str(path)], names, start, stop - start)
    assert found is not None
    assert found.column_names == names
    for name in names:
        wanted = table[name].slice(start, stop - start)
        assert _bits(found[name].cast(wanted.type)) == _bits(wanted)


def _bits(values: pa.ChunkedArray) -> list[Any]:
    """The values, so that NaN equals itself and 0 differs from -0."""
    if not pa.types.is_floating(values.type):
        return list(values.to_pylist())
    return [None if value is None else np.float64(value).tobytes() for value in values.to_pylist()]


def test_rows_that_a_file_lacks_and_bad_text_are_left_to_arrow(tmp_path: Path) -> None:
    bad = pa.array([b"\xff", b"a"], pa.binary())
    text = pa.StringArray.from_buffers(2, *bad.buffers()[1:])
    pq.write_table(pa.table({"a": [1, 2], "b": text}), tmp_path / "log.parquet")
    path = str(tmp_path / "log.parquet")
    assert decode_plain([path], ["a"], 0, 2) is not None
    assert decode_plain([path], ["a"], 1, 2) is None
    assert decode_plain([path], ["b"], 0, 2) is None


def log(rows: int, long: str = "") -> pa.Table:
    draw = np.random.default_rng(rows)
    missing = draw.random(rows) < 0.1
    return pa.table(
        {
            "click": draw.integers(0, 2, rows),
            "age": pa.array(draw.integers(0, 90, rows), mask=missing),
            "price": draw.random(rows),
            "at": pa.array(draw.integers(10**9, 2 * 10**9, rows), pa.timestamp("s")),
            "shop": [f"{shop:08x}" for shop in draw.integers(0, 2**32, rows)],
            "user": pa.array([f"{long}u{user}" for user in draw.integers(0, rows, rows)], mask=missing),
            "page": [f"https://a.example/{page}" for page in draw.integers(0, 9, rows)],
            "items": [list(map(str, range(size))) for size in draw.integers(0, 4, rows)],
        }
    )


YAML = """name: log
delimiter: ","
columns:
  - {name: click, role: label}
  - {name: age, role: dense, kind: integer}
  - {name: price, role: dense, kind: float}
  - {name: at, role: time, kind: iso}
  - {name: shop, role: sparse, kind: hex}
  - {name: user, role: sparse, kind: string}
  - {name: page, role: sparse, kind: string}
derived: [{name: hour, kind: hour, of: at}]
"""


def read_all(path: Path, names: list[str], unit_bytes: int) -> list[pa.Table]:
    (source,) = find_files("input", str(path))
    feeds = unit_feeds(source, {name: name for name in names}, unit_bytes, lambda _: True)
    return [unit.table for feed in feeds for unit in feed.items() if isinstance(unit, ParquetUnit)]


@pytest.mark.parametrize("group", [700, 30_000])
@pytest.mark.parametrize("names", [["click", "age", "price", "shop", "user"], ["click", "page", "items"]])
def test_a_file_is_cut_into_units_of_its_rows(tmp_path: Path, group: int, names: list[str]) -> None:
    """By polars and by Arrow; several row groups to a unit, and slices of larger ones."""
    table = log(30_000, long="a name of many letters ")
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=group)
    tables = read_all(tmp_path / "log.parquet", names, 1 << 18)
    assert len(tables) > 2
    whole = pa.concat_tables(each.cast(table.select(names).schema) for each in tables)
    assert whole.equals(table.select(names))


def test_the_footer_decides_what_decodes_a_file(tmp_path: Path) -> None:
    """Not the number of rows, nor the column: one decoder for all columns that are read."""
    names = ["click", "age", "price", "shop", "user"]
    for rows in (100, 30_000):
        pq.write_table(log(rows, long="a name of many letters "), tmp_path / "log.parquet")
        (source,) = find_files("input", str(tmp_path / "log.parquet"))
        assert polars_is_preferred(source, names)
        assert not polars_is_preferred(source, [*names, "items"])
        (plain,) = read_all(tmp_path / "log.parquet", names, 64 << 20)
        (mixed,) = read_all(tmp_path / "log.parquet", [*names, "items"], 64 << 20)
        assert plain["shop"].type == pa.string_view()
        assert mixed["shop"].type == pa.string()
    long_names = log(30_000, long="a name of many letters ")
    repeated = long_names.set_column(5, "user", pa.array(["a name of many letters "] * 30_000))
    pq.write_table(repeated, tmp_path / "repeated.parquet")
    (source,) = find_files("input", str(tmp_path / "repeated.parquet"))
    assert not polars_is_preferred(source, names)


@pytest.mark.parametrize("encoding", ["hash", "vocab"])
def test_both_decoders_give_the_same_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    pq.write_table(log(30_000), tmp_path / "log.parquet", row_group_size=700)
    (tmp_path / "log.yaml").write_text(YAML)
    found = []
    for way in ("as_the_footer_says", "arrow"):
        if way == "arrow":
            monkeypatch.setattr(parquet_units, "polars_is_preferred", lambda source, names: False)
        keys = [f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.parquet", "layout.unit_mib=1"]
        run(tmp_path / way, *keys, f"encoding={encoding}", "threads=2", "split.val=0.1")
        shards = sorted((tmp_path / way).rglob("*.parquet"))
        found.append([(shard.name, shard.read_bytes()) for shard in shards])
    assert len(found[0]) > 2
    assert found[0] == found[1]


@pytest.mark.parametrize("names", [["click", "age", "shop"], ["click", "page", "items"]])
@pytest.mark.parametrize("sizes", [[300, 0, 20, 700], [0, 0], [1], [0, 5]])
def test_a_bundle_holds_the_rows_of_its_files(tmp_path: Path, names: list[str], sizes: list[int]) -> None:
    """Also of files without rows, and with the key of each one's partition."""
    for number, size in enumerate(sizes):
        (tmp_path / f"log/dt={number}").mkdir(parents=True)
        pq.write_table(log(800).slice(0, size), tmp_path / f"log/dt={number}/part.parquet")
    sources = tuple(find_files("input", str(tmp_path / "log")))
    columns = {name: name for name in [*names, "dt"]}
    (unit,) = BundleFeed(sources, columns, 1 << 20, False, True).prefetched().items()
    assert isinstance(unit, ParquetUnit)
    tables = [log(800).slice(0, size).select(names) for size in sizes]
    days = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    assert unit.table["dt"].to_pylist() == days
    assert unit.table.select(names).cast(tables[0].schema).equals(pa.concat_tables(tables))
    assert [file.lines for file in unit.files] == sizes


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(log(20_000), path)
    content = bytearray(path.read_bytes())
    content[1000:40_000] = bytes(39_000)
    path.write_bytes(content)
    (source,) = find_files("input", str(path))
    with refused(DamagedFileError, str(path), "cannot be read as Parquet..."):
        list(ParquetFeed(source, {"price": "price", "age": "age"}, 64 << 20, (0,)).items())
