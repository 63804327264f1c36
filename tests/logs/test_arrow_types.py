"""Streams of polars, which writes views, are read as tables of plain types with the same values."""

import io
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from dlrm_app.logs.arrow_types import with_plain_types

NAMES = ["a", None, "žluť, which is longer than twelve bytes"]
COLUMNS: dict[str, tuple[list[Any], Any, pa.DataType]] = {
    # values, polars' type, Arrow's
    "texts": (NAMES, pl.String, pa.string()),
    "bytes": ([b"a", None, b"\xff" * 20], pl.Binary, pa.binary()),
    "lists of texts": ([["a", None], [], None], pl.List(pl.String), pa.list_(pa.string())),
    "numbers": ([1.5, None, 2.0], pl.Float32, pa.float32()),
    "lists of categories": ([["a", "b"], [], None], pl.List(pl.Categorical), pa.list_(pa.string())),
}


def stream_of(frame: pl.DataFrame) -> pa.Table:
    stream = io.BytesIO()
    frame.write_ipc_stream(stream)
    with pa.ipc.open_stream(stream.getvalue()) as reader:
        return reader.read_all()


@pytest.mark.parametrize("name", COLUMNS)
def test_values_of_views_are_kept(name: str) -> None:
    values, kind, plain = COLUMNS[name]
    table = with_plain_types(stream_of(pl.DataFrame({"column": pl.Series(values, dtype=kind)})))
    assert table["column"].type == plain
    assert table["column"].to_pylist() == values
    table.take(pa.array([2, 0]))  # views have no such function


def test_categories_have_texts() -> None:
    table = with_plain_types(stream_of(pl.DataFrame({"column": pl.Series(NAMES, dtype=pl.Categorical)})))
    assert table["column"].type.value_type in (pa.string(), pa.large_string())
    assert table["column"].to_pylist() == NAMES
    table.take(pa.array([2, 0]))


def test_views_of_lists_are_lists() -> None:
    views = pa.array([[1, 2], None, []], pa.list_view(pa.int64()))
    column = with_plain_types(pa.table({"column": views}))["column"]
    assert (column.type, column.to_pylist()) == (pa.list_(pa.int64()), views.to_pylist())
