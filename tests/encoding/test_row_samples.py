"""The hash of a row's content: against plain Python, and the same whatever file, format or order a row comes in."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlrm_app.encoding.row_hash import content_hashes
from dlrm_app.encoding.row_samples import KnownShare, RowSample
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.sources.feeds import unit_feeds
from dlrm_app.preprocessing.request import read_request, with_file_specs
from tests.preprocessing import reference
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import configure, spec_of

COLUMNS = (
    "[{name: clicked, role: label}, {name: price, role: dense, kind: float}, {name: at, role: time, kind: seconds}, "
    '{name: item, role: sparse, kind: integer}, {name: tags, role: sparse, kind: string, separator: "|"}]'
)
SHOP = [
    "dataset.name=shop",
    'dataset.delimiter=","',
    f"dataset.columns={COLUMNS}",
    "dataset.derived=[{name: hour, kind: hour, of: at}]",
]


def hashes_of(path: Path, *words: str) -> NDArray[np.uint64]:
    """The hash of every row of a file, as preprocessing reads it."""
    config = configure(*words, f"input.train={path}", "output=none", "layout.unit_mib=1")
    plan = with_file_specs(read_request(config)).inputs
    (source,) = plan.sources
    columns = plan.columns_of(source) if source.format == "parquet" else {}
    found = [np.empty(0, np.uint64)]
    for feed in unit_feeds(source, columns, plan.unit_bytes, lambda _: True):
        for unit in feed.items():
            spec = plan.file_specs[0]
            found += [content_hashes(raw, spec) for raw in open_cursor(unit, spec).rows(777, None)]
    return np.concatenate(found)


def test_hashes_match_the_rule_in_plain_python(tmp_path: Path) -> None:
    (tmp_path / "clicks").write_bytes(text := make_clicks(300))
    spec = spec_of("criteo_kaggle")
    rows = [reference.parse_line(line, spec) for line in text.splitlines()]
    expected = [reference.content_hash(row) for row in rows]
    assert hashes_of(tmp_path / "clicks", "dataset=criteo_kaggle").tolist() == expected


@pytest.mark.slow
def test_formats_order_names_and_labels_change_no_hash(tmp_path: Path) -> None:
    rows = [
        f"{n % 2},{n % 7 / 8 if n % 5 else ''},{1.7e9 + n},{n % 11},{'a|b' if n % 3 else ''}"
        for n in range(500)
    ]
    (tmp_path / "log").write_text("\n".join(rows) + "\n")
    (tmp_path / "log.gz").write_bytes(gzip.compress((tmp_path / "log").read_bytes()))
    other = [f"{1 - int(row[0])}{row[1:]}" for row in rows[::-1]]
    (tmp_path / "turned").write_text("\n".join(other) + "\n")
    names = ["clicked", "price", "at", "item", "tags"]
    (tmp_path / "named").write_text(
        "\n".join([",".join(names[::-1]), *(",".join(row.split(",")[::-1]) for row in rows)]) + "\n"
    )
    values = [row.split(",") for row in rows]
    table = pa.table(
        {
            "tags": [v[4].split("|") if v[4] else [] for v in values],
            "item": pa.array([int(v[3]) for v in values], pa.int32()),
            "price": pa.array([float(v[1]) if v[1] else None for v in values], pa.float32()),
            "at": pa.array([int(float(v[2])) for v in values], pa.timestamp("s")),
            "clicked": [int(v[0]) for v in values],
        }
    )
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=70)
    expected = hashes_of(tmp_path / "log", *SHOP)
    assert len(set(expected.tolist())) == 500
    assert np.array_equal(hashes_of(tmp_path / "log.gz", *SHOP), expected)
    assert np.array_equal(hashes_of(tmp_path / "named", *SHOP, "dataset.header=true"), expected)
    assert np.array_equal(hashes_of(tmp_path / "turned", *SHOP), expected[::-1])
    assert np.array_equal(hashes_of(tmp_path / "log.parquet", *SHOP), expected)


NUMBERS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20).map(lambda n: n << 57), max_size=60)


@given(st.lists(NUMBERS, max_size=4), NUMBERS, st.integers(1, 12))
def test_a_sample_has_all_rows_of_its_contents(parts: list[list[int]], other: list[int], most: int) -> None:
    sample = RowSample.joined((RowSample.of(np.array(part, np.uint64), most) for part in parts), most)
    numbers = Counter(number for part in parts for number in part)
    inside = {n: count for n, count in sorted(numbers.items()) if n < 1 << (64 - sample.bits)}
    assert sample.hashes.tolist() == list(inside)
    assert sample.counts.tolist() == list(inside.values())
    assert len(inside) <= most
    assert sample.copies == KnownShare(sum(inside.values()), sum(inside.values()) - len(inside))
    rest = [n for n in other if n < 1 << (64 - sample.bits)]
    expected = KnownShare(len(rest), sum(n in inside for n in rest))
    assert sample.count_of(np.array(other, np.uint64)) == expected
    if sample.bits == 0 or len(set(rest)) <= most:
        seen = RowSample.of(np.array(rest, np.uint64), 100).seen_in([sample])
        assert seen == expected
