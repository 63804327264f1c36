"""One value has one key, however it is written: in text, in each type of Parquet, of pandas and of polars, in JSON.

The tables are those of docs/how-to/preprocessing.md. A row is a value, its texts, and the Python value that types hold.
"""

import datetime
import decimal
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dlrm_app.inference.predict.python_rows import to_table
from dlrm_app.inference.serve.request import JsonRows, RequestError
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.parquet_columns import type_faults
from dlrm_app.logs.parser import Parser
from dlrm_app.logs.sources.text_units import PADDING
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.logs.strings import MISSING_KEY
from tests.preprocessing.reference import key_of

STRING = LogColumn("x", "sparse", "string")
WHOLE = LogColumn("x", "sparse", "string", whole=True)
INTEGER = LogColumn("x", "sparse", "integer")
DAY, MOMENT = datetime.date(2026, 11, 23), datetime.datetime(2026, 11, 23, 17, 9, 8)
PART = MOMENT.replace(microsecond=250_000)
UTC, TOKYO = datetime.UTC, datetime.timezone(datetime.timedelta(hours=9))
UNITS = ("s", "ms", "us", "ns")
INTS = [pa.int16(), pa.int32(), pa.int64(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(9, 0), pa.decimal128(12, 3), pa.decimal256(40, 2)]


def texts_of(text: str) -> list[pa.Array]:
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]
    plain = [pa.array([text]).cast(kind) for kind in kinds]
    return [
        *plain,
        pa.array([text]).dictionary_encode(),
        pa.array([text]).cast(pa.large_string()).dictionary_encode(),
    ]


def numbers_of(number: int) -> list[pa.Array]:
    whole = [
        pa.array([number], kind) for kind in INTS if number >= 0 or not pa.types.is_unsigned_integer(kind)
    ]
    floats = [pa.array([np.float64(number)]).cast(kind) for kind in FLOATS]
    decimals = [pa.array([decimal.Decimal(number)], kind) for kind in DECIMALS]
    gaps = pa.array(pd.Series([number], dtype="Int64"))
    return [*whole, *floats, *decimals, gaps, floats[-1].dictionary_encode(), whole[0].dictionary_encode()]


def times_of(moment: datetime.datetime) -> list[pa.Array]:
    units = UNITS if not moment.microsecond else UNITS[1:]
    zones = (None, "UTC", "Asia/Tokyo", "+01:00")
    stamps = [pa.array([moment], pa.timestamp(unit, zone)) for unit in units for zone in zones]
    return [*stamps, stamps[0].dictionary_encode()]


def days_of(day: datetime.date) -> list[pa.Array]:
    midnight = datetime.datetime(*day.timetuple()[:3])
    return [pa.array([day], pa.date32()), pa.array([day], pa.date64()), *times_of(midnight)]


FLAGS = [pa.array([True]), pa.array([True]).dictionary_encode()]
ROWS: list[tuple[LogColumn, str | int, list[str], list[pa.Array], list[object], list[object]]] = [
    # column, the text or number whose key all have, texts, arrays of Arrow, values of JSON, values of Python
    (STRING, "true", ["true", "True", "TRUE"], FLAGS, [True], [True, np.bool_(True)]),
    (STRING, "false", ["false", "False", "FALSE"], [pa.array([False])], [False], [False, np.bool_(False)]),
    (STRING, "1015", ["1015"], numbers_of(1015), [1015], [1015, np.int64(1015), 1015.0, np.float32(1015)]),
    (STRING, "-15", ["-15"], numbers_of(-15), [-15], [-15, np.int8(-15)]),
    (STRING, "007", ["007"], [], [], []),
    (STRING, "1015.0", ["1015.0"], [], [], []),
    (STRING, "1e3", ["1e3"], [], [], []),
    (STRING, "+5", ["+5"], [], [], []),
    (STRING, "2.5", ["2.5"], [pa.array([decimal.Decimal("2.50")], pa.decimal128(9, 2))], [], []),
    (WHOLE, "1015", ["1015", "1015.0", "1015.", "+1015.00"], numbers_of(1015), [1015, 1015.0], [1015.0]),
    (WHOLE, "0", ["0", "0.0", "-0.0"], numbers_of(0), [0, 0.0, -0.0], [0, -0.0]),
    (WHOLE, "-15", ["-15", "-15.0"], numbers_of(-15), [-15, -15.0], [-15.0]),
    (WHOLE, "9007199254740993", ["9007199254740993"], [pa.array([2**53 + 1])], [2**53 + 1], [2**53 + 1]),
    (WHOLE, "true", ["true", "True"], FLAGS, [True], [True]),
    (WHOLE, "007", ["007"], [], [], []),
    (WHOLE, "abc", ["abc"], [], [], []),
    (
        STRING,
        "2026-11-23",
        ["2026-11-23", "2026-11-23 00:00:00", "2026-11-23T00:00:00.000Z"],
        days_of(DAY),
        [],
        [DAY],
    ),
    (
        STRING,
        "2026-11-23 17:09:08",
        [
            *(
                "2026-11-23 17:09:08",
                "2026-11-23T17:09:08",
                "2026-11-23T17:09:08Z",
                "2026-11-23 17:09:08.000",
            ),
            *("2026-11-23T17:09:08.000000+00:00", "2026-11-24 02:09:08+09:00", "2026-11-23t18:09:08+01"),
            # as BigQuery, Trino and Snowflake write them
            *("2026-11-23 17:09:08 UTC", "2026-11-23 17:09:08.000 UTC", "2026-11-23 17:09:08.000 +0000"),
            *("2026-11-23 09:09:08.000 -0800", "2026-11-23 17:09:08.000 Z", "2026-11-23 17:09:08 gmt"),
        ],
        times_of(MOMENT),
        [],
        [
            MOMENT,
            MOMENT.replace(tzinfo=UTC),
            MOMENT.replace(tzinfo=UTC).astimezone(TOKYO),
            np.datetime64(MOMENT),
        ],
    ),
    (
        STRING,
        "2026-11-23 17:09:08.25",
        ["2026-11-23T17:09:08.250", "2026-11-23 17:09:08.25"],
        times_of(PART),
        [],
        [PART],
    ),
    (
        STRING,
        "2026-11-23 17:09:00",
        ["2026-11-23 17:09", "2026-11-23T17:09Z"],
        [],
        [],
        [MOMENT.replace(second=0)],
    ),
    (
        INTEGER,
        1015,
        ["1015", "1015.0", "1015.", "+1015", "01015"],
        numbers_of(1015),
        [1015, 1015.0],
        [1015, 1015.0],
    ),
    (INTEGER, 0, ["0", "-0", "0.00", "-0.0"], numbers_of(0), [0, 0.0], [0]),
    (INTEGER, 1000, ["1000", "1000.0"], numbers_of(1000), [1000, 1e3], [1e3]),
    (INTEGER, 1, ["1"], FLAGS, [True], [True]),
    (INTEGER, 20_780, ["20780"], days_of(datetime.date(2026, 11, 23)), [], [DAY]),
]


def of_text(text: str, column: LogColumn) -> Iterator[int]:
    """The keys of a field, plain, in quotes and within a list."""
    listed = LogColumn("l", column.role, column.kind, separator="|", whole=column.whole)
    spec = Spec("of a test", ",", '"', False, (column, listed))
    line = f'"{text}",{text}|{text}\n'.encode()
    buffer = np.frombuffer(bytearray(line + bytes(PADDING)), np.uint8)
    parser = Parser(spec, 4)
    _, _, rejects = parser.parse(buffer, 0, len(line), 9)
    assert not rejects, rejects
    raw = parser.take()
    yield from (int(raw.keys[0, 0]), *map(int, raw.lists[0].keys[: raw.lists[0].ends[-1]]))


def of_table(table: pa.Table, spec: Spec) -> int | None:
    """The key of the one value of a table of one row; None if it is rejected."""
    cursor = ArrowCursor(table.combine_chunks(), spec)
    (raw,) = cursor.rows(9, None)
    if cursor.take_rejects():
        return None
    return int(raw.lists[0].keys[0]) if raw.lists else int(raw.keys[0, 0])


def of_array(array: Any, column: LogColumn) -> Iterator[int | None]:
    """The keys of an array's value, alone and within each type of lists."""
    listed = LogColumn("x", column.role, column.kind, separator="|", whole=column.whole)
    yield of_typed(pa.table({"x": array}), column)
    kind = array.type
    for make in (pa.list_(kind), pa.large_list(kind), pa.list_(kind, 1)):
        plain = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), array)
        if make == pa.list_(kind):
            lists = plain
        elif make == pa.large_list(kind):
            lists = pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), array)
        else:
            lists = pa.FixedSizeListArray.from_arrays(array, 1)
        yield of_typed(pa.table({"x": lists}), listed)


def of_typed(table: pa.Table, column: LogColumn) -> int | None:
    spec = Spec("of a test", ",", None, False, (column,))
    faults = type_faults(
        "the rows", table.schema, ["x"], Spec("", ",", None, False, (column,), order=(column,))
    )
    assert not faults, faults
    return of_table(table, spec)


def of_json(value: object, column: LogColumn) -> Iterator[int | None]:
    for is_list in (False, True):
        described = LogColumn(
            "x", column.role, column.kind, separator="|" if is_list else None, whole=column.whole
        )
        rows = JsonRows(Spec("of a test", ",", None, False, (described,)))
        body = json.dumps({"rows": [{"x": [value] if is_list else value}]}).encode()
        yield of_table(rows.table(rows.read(body, 9).rows), rows.spec)


def frames_of(value: object) -> list[Any]:
    """The value as rows of Python, pandas and polars, in each type that fits."""
    frames = [
        [{"x": value}],
        {"x": [value]},
        {"x": value},
        pd.DataFrame({"x": [value]}),
        pd.Series({"x": value}),
    ]
    frames += [pd.DataFrame({"x": [value]}, dtype=object), pd.DataFrame({"x": pd.Categorical([value])})]
    if not isinstance(value, np.datetime64 | np.bool_):
        frames += [
            pl.DataFrame({"x": [value]}),
            pd.DataFrame({"x": pl.Series([value]).to_pandas(use_pyarrow_extension_array=True)}),
        ]
    if isinstance(value, bool):
        frames += [
            pd.DataFrame({"x": [value]}, dtype="boolean"),
            pd.DataFrame({"x": [value]}, dtype="bool[pyarrow]"),
        ]
    if isinstance(value, int) and not isinstance(value, bool):
        frames += [pd.DataFrame({"x": [value]}, dtype=kind) for kind in ("Int64", "int64[pyarrow]")]
    return frames


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row[0].kind}{'-whole' * bool(row[0].whole)}-{row[1]}"
)
def test_each_notation_of_a_value_has_its_key(row: Any) -> None:
    column, value, texts, arrays, in_json, in_python = row
    key = key_of(value)
    for text in texts:
        assert {*of_text(text, column)} == {key}, text
        assert {found for array in texts_of(text) for found in of_array(array, column)} == {key}, text
        assert {*of_json(text, column)} == {key}, text
        assert {of_typed(to_table(each, spec_of(column)), column) for each in frames_of(text)} == {key}, text
    for array in arrays:
        assert {*of_array(array, column)} == {key}, array.type
    for given in in_json:
        assert {*of_json(given, column)} == {key}, given
    for given in in_python:
        for frame in frames_of(given):
            assert of_typed(to_table(frame, spec_of(column)), column) == key, (given, type(frame))


def spec_of(column: LogColumn) -> Spec:
    return Spec("of a test", ",", None, False, (column,))


REFUSED: list[tuple[LogColumn, list[str], list[Any], list[object]]] = [
    # column, texts, arrays and values of JSON that are no value of it
    (INTEGER, ["1015.5", "1e3", "1,015", "9007199254740992.0", "nan", "True", "0x1F", "1_000"], [], []),
    (
        INTEGER,
        [],
        [pa.array([2.5]), pa.array([2.0**53]), pa.array([2.0**24], pa.float32())],
        [2.5, 2.0**53, 1e16],
    ),
    (INTEGER, [], [pa.array([2**63], pa.uint64()), pa.array([math.inf])], [2**63, 10**30]),
    (STRING, [], [pa.array([2.5]), pa.array([2.0**53]), pa.array([-(2.0**24)], pa.float32())], [1015.0, 2.5]),
    (
        WHOLE,
        ["1015.5", "1e3", "1.5E+18", "9007199254740992.0"],
        [pa.array([2.5]), pa.array([1e16])],
        [2.5, 1e16],
    ),
]


@pytest.mark.parametrize("column", [INTEGER, STRING, WHOLE], ids=["integer", "string", "whole"])
def test_what_has_lost_digits_or_is_no_id_is_refused(column: LogColumn) -> None:
    for _, texts, arrays, in_json in (each for each in REFUSED if each[0] == column):
        for text in texts:
            with pytest.raises(AssertionError):
                [*of_text(text, column)]
            assert {found for array in texts_of(text) for found in of_array(array, column)} == {None}, text
        for array in arrays:
            assert {*of_array(array, column)} == {None}, array
        for given in in_json:
            assert refused_by_json(given, column), given


def refused_by_json(value: object, column: LogColumn) -> bool:
    try:
        return {*of_json(value, column)} == {None}
    except RequestError:
        return True


@pytest.mark.parametrize("column", [INTEGER, STRING, WHOLE], ids=["integer", "string", "whole"])
@pytest.mark.parametrize(
    "array",
    [
        pa.nulls(1, pa.bool_()),
        pa.nulls(1, pa.float64()),
        pa.array([math.nan]),
        pa.nulls(1, pa.timestamp("ns")),
    ],
    ids=str,
)
def test_nulls_of_each_type_are_missing(column: LogColumn, array: pa.Array) -> None:
    table = to_table(pa.table({"x": array}), spec_of(column))
    assert of_typed(table, column) == int(MISSING_KEY)
