"""What our Parquet writer writes, other Parquet readers read, to the bit."""

import io
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from dlrm_app.dataset.dictionary import Indexed, IndexedColumn, IndexedRows, JaggedColumns, index_columns
from dlrm_app.dataset.parquet import ParquetWriter, pack_bits

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


def written(groups: list[pa.Table]) -> bytes:
    file = io.BytesIO()
    writer = ParquetWriter(file.write, SCHEMA)
    for group in groups:
        writer.write(IndexedRows.of(group))
    writer.close()
    return file.getvalue()


def read(data: bytes) -> pa.Table:
    return pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 99)), max_size=4))
def test_any_row_groups_come_back(shapes: list[tuple[int, int]]) -> None:
    groups = [make_table(*shape) for shape in shapes]
    found = read(written(groups))
    assert found.schema == SCHEMA
    assert found.equals(pa.concat_tables(groups) if groups else SCHEMA.empty_table())
    metadata = pq.ParquetFile(io.BytesIO(written(groups))).metadata
    sizes = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    assert sizes == [rows for rows, _ in shapes]


def test_slices_are_written_as_if_they_were_tables_of_their_own() -> None:
    table = make_table(1000, seed=4)
    whole = pa.Table.from_batches([table.slice(300, 200).combine_chunks().to_batches()[0]])
    assert written([table.slice(300, 200)]) == written([whole])


def test_duckdb_and_polars_read_the_same(tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    groups = [make_table(rows, seed=rows) for rows in (5000, 300)]
    expected = pa.concat_tables(groups)
    path = tmp_path / "x.parquet"
    path.write_bytes(written(groups))
    assert polars.read_parquet(path).to_dicts() == expected.to_pylist()
    assert duckdb.sql(f"select * from '{path}'").to_arrow_table().cast(SCHEMA).equals(expected)


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(written([make_table(5000)]))
    data[len(data) // 2] ^= 1
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        read(bytes(data))


def test_a_column_stays_plain_after_too_many_values() -> None:
    spread, flat = make_table(4000, seed=1), make_table(4000, seed=2)
    flat = flat.set_column(2, SCHEMA.field("many"), pa.array(np.zeros(4000, np.int32)))
    metadata = pq.ParquetFile(io.BytesIO(written([flat, spread, flat]))).metadata
    encodings = [metadata.row_group(place).column(2).encodings for place in range(3)]
    assert ["RLE_DICTIONARY" in found for found in encodings] == [True, False, False]


def test_an_empty_row_group_may_follow_one_of_many_values() -> None:
    polars = pytest.importorskip("polars")
    draw = np.random.default_rng(8)
    many, empty, last = make_table(3000, seed=1), make_table(40, seed=1), make_table(1, seed=1)
    elements = pa.array(draw.integers(0, 1 << 20, 6000).astype(np.int32))
    many, empty = (
        table.set_column(4, SCHEMA.field("lists"), pa.ListArray.from_arrays(pa.array(ends), part, type=LISTS))
        for table, ends, part in (
            (many, np.arange(0, 6001, 2).astype(np.int32), elements),
            (empty, np.zeros(41, np.int32), elements[:0]),
        )
    )
    numbers = pa.array((1 + draw.integers(0, 1 << 15, 3000) / (1 << 16)).astype(np.float32))
    many = many.set_column(3, SCHEMA.field("number"), numbers)
    groups = [many, empty, last, SCHEMA.empty_table(), many]
    data = written(groups)
    first = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    assert all("BYTE_STREAM_SPLIT" in first.column(place).encodings for place in (3, 4))
    expected = pa.concat_tables(groups)
    assert read(data).equals(expected)
    assert polars.read_parquet(io.BytesIO(data)).to_dicts() == expected.to_pylist()


@given(st.integers(1, 32), st.lists(st.integers(0, 2**32 - 1), max_size=90))
def test_bits_are_packed_from_the_lowest_on(width: int, values: list[int]) -> None:
    codes = np.array(values, np.uint32) & np.uint32((1 << width) - 1)
    words = np.full(-(-len(codes) // 8) * width // 8 + 1, np.iinfo(np.uint64).max, np.uint64)
    distinct, numbers = np.unique(codes, return_inverse=True)
    pack_bits(numbers.astype(np.uint16), distinct, width, words)
    expected = sum(int(code) << (place * width) for place, code in enumerate(codes))
    assert sum(int(word) << (64 * place) for place, word in enumerate(words)) == expected


def test_bytes_of_distinct_integers_are_split_and_compressed() -> None:
    draw = np.random.default_rng(3)
    table = make_table(5000).set_column(
        2, SCHEMA.field("many"), pa.array(draw.integers(0, 100_000, 5000).astype(np.int32))
    )
    data = written([table])
    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(2)
    assert "BYTE_STREAM_SPLIT" in column.encodings
    assert column.total_compressed_size < 0.65 * 4 * 5000
    assert read(data).equals(table)


def test_indexed_columns_are_written_with_equal_values_joined() -> None:
    """Distinct keys that were encoded to one id have one place in the dictionary."""
    draw = np.random.default_rng(5)
    table = make_table(5000)
    keys = draw.integers(0, 900, (2, 5000)).astype(np.uint32)
    found = index_columns(JaggedColumns.joined(list(keys)), np.array([900, 900]), np.zeros(2, np.uint32))
    words = np.concatenate([found.distinct[0] % 7, found.distinct[1] % 300]).astype(np.uint32)
    indexed = Indexed(
        found.codes, JaggedColumns(words, found.distinct.begins, found.distinct.ends), found.num_missing
    )
    file = io.BytesIO()
    writer = ParquetWriter(file.write, SCHEMA)
    plain = IndexedRows.of(table).columns
    writer.write(
        IndexedRows(
            SCHEMA,
            [plain[0], IndexedColumn(indexed, 1), IndexedColumn(indexed, 0), *plain[3:]],
            indexed,
            5000,
        )
    )
    writer.close()
    found_table = read(file.getvalue())
    assert found_table["few"].to_pylist() == (keys[1] % 300).tolist()
    assert found_table["many"].to_pylist() == (keys[0] % 7).tolist()
    assert found_table.drop_columns(["few", "many"]).equals(table.drop_columns(["few", "many"]))
    row_group = pq.ParquetFile(file).metadata.row_group(0)
    sizes = [row_group.column(place).total_uncompressed_size for place in (1, 2)]
    assert sizes[0] == pytest.approx(300 * 4 + 5000 * 9 / 8, rel=0.03)
    assert sizes[1] == pytest.approx(7 * 4 + 5000 * 3 / 8, rel=0.05)
