"""What our Parquet writer writes, other Parquet readers read, to the bit."""

import io
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from dlrm_app.preprocess.indexing import index_values
from dlrm_app.preprocess.pages import pack_bits
from dlrm_app.preprocess.parquet import ParquetWriter

LISTS = pa.list_(pa.field("element", pa.int32(), nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("label", pa.uint8(), nullable=False),
        pa.field("few", pa.int32(), nullable=False),
        pa.field("many", pa.int32(), nullable=False),
        pa.field("number", pa.float32(), nullable=False),
        pa.field("lists", LISTS, nullable=False),
    ]
)


def make_table(num_rows: int, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 4, num_rows) * draw.integers(0, 2)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    elements = pa.array(draw.integers(0, 50, ends[-1]).astype(np.int32))
    columns = [
        pa.array(draw.integers(0, 2, num_rows).astype(np.uint8)),
        pa.array(draw.integers(-3, draw.integers(-2, 9), num_rows).astype(np.int32)),
        pa.array(draw.integers(-(2**31), 2**31, num_rows).astype(np.int32)),
        pa.array(np.log1p(draw.integers(0, draw.choice([5, 10_000]), num_rows)).astype(np.float32)),
        pa.ListArray.from_arrays(pa.array(ends), elements, type=LISTS),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def written(groups: list[pa.Table], compression: str, level: int | None = 1) -> bytes:
    file = io.BytesIO()
    writer = ParquetWriter(file, SCHEMA, compression, level)
    for group in groups:
        writer.write_group([column.combine_chunks() for column in group.columns], len(group))
    writer.close()
    return file.getvalue()


def read(data: bytes) -> pa.Table:
    return pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 700), st.integers(0, 99)), max_size=4),
    st.sampled_from(["zstd", "lz4", "snappy", "none"]),
)
def test_any_row_groups_come_back(shapes: list[tuple[int, int]], compression: str) -> None:
    groups = [make_table(*shape) for shape in shapes]
    found = read(written(groups, compression))
    assert found.schema == SCHEMA
    assert found.equals(pa.concat_tables(groups) if groups else SCHEMA.empty_table())
    metadata = pq.ParquetFile(io.BytesIO(written(groups, compression))).metadata
    sizes = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    assert sizes == [rows for rows, _ in shapes]


def test_slices_are_written_as_if_they_were_tables_of_their_own() -> None:
    table = make_table(1000, seed=4)
    whole = pa.Table.from_batches([table.slice(300, 200).combine_chunks().to_batches()[0]])
    assert written([table.slice(300, 200)], "zstd") == written([whole], "zstd")


@pytest.mark.parametrize("compression", ["zstd", "lz4", "snappy", "none"])
def test_duckdb_and_polars_read_the_same(tmp_path: Path, compression: str) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    groups = [make_table(rows, seed=rows) for rows in (5000, 300)]
    expected = pa.concat_tables(groups)
    path = tmp_path / "x.parquet"
    path.write_bytes(written(groups, compression))
    assert polars.read_parquet(path).to_dicts() == expected.to_pylist()
    assert duckdb.sql(f"select * from '{path}'").to_arrow_table().cast(SCHEMA).equals(expected)


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(written([make_table(5000)], "zstd"))
    data[len(data) // 2] ^= 1
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        read(bytes(data))


def test_a_column_keeps_to_plain_values_once_a_row_group_has_too_many() -> None:
    spread, flat = make_table(4000, seed=1), make_table(4000, seed=2)
    flat = flat.set_column(2, SCHEMA.field("many"), pa.array(np.zeros(4000, np.int32)))
    metadata = pq.ParquetFile(io.BytesIO(written([flat, spread, flat], "zstd"))).metadata
    encodings = [metadata.row_group(place).column(2).encodings for place in range(3)]
    assert ["RLE_DICTIONARY" in found for found in encodings] == [True, False, False]


@settings(deadline=None)
@given(st.integers(1, 32), st.lists(st.integers(0, 2**32 - 1), max_size=90))
def test_bits_are_packed_from_the_lowest_on(width: int, values: list[int]) -> None:
    codes = np.array(values, np.uint32) & np.uint32((1 << width) - 1)
    words = np.full(-(-len(codes) // 8) * width // 8 + 1, np.iinfo(np.uint64).max, np.uint64)
    distinct, numbers = np.unique(codes, return_inverse=True)
    pack_bits(numbers.astype(np.uint16), distinct, width, words)
    expected = sum(int(code) << (place * width) for place, code in enumerate(codes))
    assert sum(int(word) << (64 * place) for place, word in enumerate(words)) == expected


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 40), max_size=120), st.integers(0, 30), st.sampled_from([np.uint32, np.uint64])
)
def test_values_are_numbered_by_their_first_occurrences(values: list[int], limit: int, kind: type) -> None:
    order = list(dict.fromkeys(values))
    given = np.array(values, kind) * kind(0x193193)
    found = index_values(given, limit)
    if len(order) > limit:
        assert found is None
    else:
        assert found.distinct.tolist() == [value * 0x193193 for value in order]
        assert found.codes.tolist() == [order.index(value) for value in values]
