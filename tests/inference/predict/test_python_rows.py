"""Rows of Python in each form are the same table, or are refused with what to give."""

import collections
import dataclasses
import datetime
import io
import sqlite3
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from dlrm_app.errors import DataError
from dlrm_app.inference.predict.python_rows import to_table
from dlrm_app.logs.spec import LogColumn, Spec
from tests.refusals import refused

SPEC = Spec(
    "of a test",
    ",",
    None,
    False,
    (
        LogColumn("shop", "sparse", "integer"),
        LogColumn("price", "dense", "float"),
        LogColumn("seen", "sparse", "integer", separator="|"),
    ),
)
ROWS: list[dict[str, Any]] = [
    {"shop": 7, "price": 1.5, "seen": [1, 2]},
    {"shop": 8, "price": 2.0, "seen": [3, 4]},
]
COLUMNS: dict[str, list[Any]] = {name: [row[name] for row in ROWS] for name in ROWS[0]}
FRAME = pd.DataFrame(COLUMNS)


@dataclasses.dataclass
class Visit:
    shop: int
    price: float
    seen: list[int]


Named = collections.namedtuple("Named", "shop price seen")  # as people write them
FORMS: dict[str, Callable[[], object]] = {
    "pandas": lambda: FRAME,
    "polars": lambda: pl.DataFrame(COLUMNS),
    "lazy frame of polars": lambda: pl.DataFrame(COLUMNS).lazy(),
    "structs of polars": lambda: pl.DataFrame(COLUMNS).to_struct("rows"),
    "table": lambda: pa.table(COLUMNS),
    "batch": lambda: pa.record_batch(COLUMNS),
    "reader": lambda: pa.table(COLUMNS).to_reader(),
    "mappings": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "deque": lambda: collections.deque(ROWS),
    "generator": lambda: (row for row in ROWS),
    "map": lambda: map(dict, ROWS),
    "array of mappings": lambda: np.array(ROWS, dtype=object),
    "series of mappings": lambda: pd.Series(ROWS),
    "named tuples": lambda: [Named(**row) for row in ROWS],
    "rows of a frame": lambda: FRAME.itertuples(index=False),
    "dataclasses": lambda: [Visit(**row) for row in ROWS],
    "series": lambda: [row for _, row in FRAME.iterrows()],
    "proxies": lambda: [types.MappingProxyType(row) for row in ROWS],
    "records of numpy": lambda: FRAME.to_records(index=False),
    "list of records": lambda: list(FRAME.to_records(index=False)),
    "columns": lambda: COLUMNS,
    "series of columns": lambda: dict(FRAME.items()),
    "series of polars by column": lambda: {name: pl.Series(each) for name, each in COLUMNS.items()},
    "arrays by column": lambda: {name: np.array(each) for name, each in COLUMNS.items()},
    "tensors by column": lambda: {name: torch.tensor(each) for name, each in COLUMNS.items()},
    "tensors in rows": lambda: [{name: torch.tensor(each) for name, each in row.items()} for row in ROWS],
    "arrays in rows": lambda: [{name: np.array(each) for name, each in row.items()} for row in ROWS],
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_each_form_are_the_same_table(form: str) -> None:
    assert {
        name: [float(each) if name == "price" else each for each in values]
        for name, values in to_table(FORMS[form](), SPEC).to_pydict().items()
    } == COLUMNS


def test_a_row_of_sqlite_is_a_mapping() -> None:
    with sqlite3.connect(":memory:") as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT 7 AS shop, 1.5 AS price UNION SELECT 8, 2.0 ORDER BY shop").fetchall()
    assert to_table(rows, SPEC).to_pydict() == {name: COLUMNS[name] for name in ("shop", "price")}


@pytest.mark.parametrize("form", [Named(**ROWS[0]), Visit(**ROWS[0]), FRAME.iloc[0], ROWS[0]], ids=type)
def test_a_record_alone_is_one_row(form: object) -> None:
    assert to_table(form, SPEC).to_pydict() == {name: values[:1] for name, values in COLUMNS.items()}


NAMES = "...pandas.DataFrame(rows, columns=[…])"
REFUSED: dict[str, tuple[Callable[[], object], str, str, str]] = {
    # rows, key, rule, cure
    "tensor": (lambda: torch.ones(2, 3), "the rows", "are values without names of columns", NAMES),
    "array": (lambda: np.ones((2, 3)), "the rows", "are values without names of columns", NAMES),
    "array of one value": (lambda: np.ones(()), "the rows", "are values without names of columns", NAMES),
    "lists": (lambda: [[7, 1.5, [1]]], "the rows", "...row 0 is values without names of columns", NAMES),
    "pairs": (lambda: zip([7], [1.5], strict=True), "the rows", "...row 0 is values without...", NAMES),
    "text": (lambda: '[{"shop": 7}]', "the rows", "are text or bytes", "...json.loads..."),
    "texts": (lambda: ["shop=7"], "the rows", "...row 0 is text or bytes", "..."),
    "file": (lambda: io.BytesIO(b""), "the rows", "are an open file", "...dlrm-predict..."),
    "nothing": (lambda: None, "the rows", "are of the class NoneType", "give a DataFrame..."),
    "nothing among rows": (lambda: [ROWS[0], None], "the rows", "...row 1 is of the class NoneType", "..."),
    "set": (lambda: {7, 8}, "the rows", "are a set, which has no order", "..."),
    "set of values": (
        lambda: {"shop": {7, 8}, "price": [1.5, 2.0]},
        "the rows: column shop",
        "...no order",
        "give lists",
    ),
    "sets": (lambda: [{"seen": {1, 2}}], "the rows: column seen", "...which have no order", "give lists"),
    "column": (lambda: FRAME["shop"], "the rows", "are a column...", "give a DataFrame"),
    "lengths": (
        lambda: {"shop": [7, 8], "price": [1.5]},
        "the rows",
        "have columns of different lengths: shop 2, price 1",
        "give one value a row",
    ),
    "mappings of mappings": (
        lambda: FRAME.to_dict(),
        "the rows",
        "are mappings within a mapping",
        "...to_dict('list')...",
    ),
    "numbers as names": (
        lambda: [{1: 2}],
        "the rows",
        "have columns whose names are not texts: 1",
        "give the names of the log's columns",
    ),
    "types": (
        lambda: {"shop": [7, "a", None]},
        "the rows: column shop",
        "holds values of the types int, str...",
        "...of one type",
    ),
    "flags and numbers": (
        lambda: {"price": [True, 1.5]},
        "the rows: column price",
        "holds true or false among numbers...",
        "give one type",
    ),
    "flags and numbers of a frame": (
        lambda: FRAME.assign(price=pd.Series([1.5, True], dtype=object)),
        "the rows: column price",
        "holds true or false among numbers...",
        "give one type",
    ),
    "sets of a frame": (
        lambda: FRAME.assign(seen=[{1, 2}, {3}]),
        "the rows: column seen",
        "...which have no order",
        "give lists",
    ),
    "a frame as a column": (
        lambda: {"shop": FRAME[["shop"]], "price": [1.5, 2.0]},
        "the rows: column shop",
        "is a DataFrame",
        "give one of its columns, as frame['shop']",
    ),
    "one list or a text a row": (
        lambda: {"shop": [7, 8], "price": 1.5, "seen": ["1", "2"]},
        "the rows: column seen",
        "may be one list for all rows, or the text of a list for each",
        "give what all rows share as context={'seen': […], …}, or a list for each row",
    ),
    "twice": (
        lambda: pd.concat([FRAME, FRAME[["shop"]]], axis=1),
        "the rows",
        "...Duplicate column names...",
        "...each column once...",
    ),
}


@pytest.mark.parametrize("form", REFUSED)
def test_rows_without_certain_columns_are_refused_with_what_to_give(form: str) -> None:
    rows, key, rule, cure = REFUSED[form]
    with refused(DataError, key, rule, cure):
        to_table(rows(), SPEC)


MIXED = [datetime.date(2026, 11, 23), datetime.datetime(2026, 11, 23, 17, 9)]


@pytest.mark.parametrize(
    "rows",
    [
        [{"at": each} for each in MIXED],
        pd.DataFrame({"at": pd.Series(MIXED, dtype=object)}),
        {"at": np.array(MIXED, dtype=object)},
        {"at": pd.Series(MIXED, dtype=object)},
    ],
    ids=["mappings", "frame", "array", "series"],
)
def test_days_and_times_together_are_times(rows: object) -> None:
    assert to_table(rows, SPEC)["at"].to_pylist() == [datetime.datetime(2026, 11, 23), MIXED[1]]


def test_what_one_mapping_leaves_out_is_that_of_the_context() -> None:
    """As over HTTP; what it has counts first, also if that is nothing."""
    rows, context = [{"shop": 7, "price": None}, {"price": 2.0}, {"shop": 8}], {"price": 1.5, "shop": 9}
    table = to_table(rows, SPEC, context).to_pydict()
    assert table == {"shop": [7, 9, 8], "price": [None, 2.0, 1.5]}


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_times_of_numpy_are_times_in_every_unit(unit: str) -> None:
    """Python has no times of nanoseconds: NumPy's tolist makes whole numbers of them."""
    times = np.array(["2026-11-23", "2026-11-24"], f"M8[{unit}]")
    records = np.rec.fromarrays([times, [7, 8]], names="at,shop")
    for rows in (records, list(records), {"at": times}, [{"at": time} for time in times]):
        found = to_table(rows, SPEC)["at"].cast(pa.timestamp("us")).to_pylist()
        assert found == [datetime.datetime(2026, 11, 23), datetime.datetime(2026, 11, 24)]
    lists = to_table([{"at": times, "seen": torch.ones(1)}], SPEC)["at"].cast(pa.list_(pa.timestamp("us")))
    assert lists.to_pylist() == [found]


def test_categories_are_their_values_in_lists_and_in_chunks() -> None:
    lists = pl.DataFrame({"seen": [["a"], ["b", "a"]]}, schema={"seen": pl.List(pl.Categorical)})
    assert to_table(lists, SPEC)["seen"].to_pylist() == [["a"], ["b", "a"]]
    parts = [pa.Table.from_pandas(pd.DataFrame({"shop": pd.Categorical([name])})) for name in "ab"]
    table = to_table(pa.concat_tables(parts), SPEC).combine_chunks()
    assert table["shop"].to_pylist() == ["a", "b"]
