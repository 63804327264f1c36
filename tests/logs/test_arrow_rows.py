"""Values of Parquet become what the slow reference makes of their text, whatever their types and row groups."""

import datetime
import decimal
import math
import os
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from dlrm_app.logs.arrow_rows import ArrowCursor, open_cursor
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.parquet_units import ParquetFeed, ParquetUnit, units_of
from dlrm_app.logs.sources.source import DamagedFileError
from dlrm_app.logs.spec import LogColumn, Spec
from tests.logs.test_lines import rows_of, same, with_keys
from tests.preprocessing import reference
from tests.refusals import refused

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def spec(*columns: LogColumn) -> Spec:
    return Spec("of a test", "\t", None, False, columns)


def table_of(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


def read(table: pa.Table, form: Spec, capacity: int = 3) -> tuple[list[reference.Row], list[int], list[str]]:
    """(rows, numbers of rejected ones, reasons)."""
    cursor = ArrowCursor(table, form)
    rows = [row for raw in cursor.rows(capacity, None) for row in rows_of(raw, form)]
    rejects = cursor.take_rejects()
    return rows, [reject.line for reject in rejects], [reject.reason for reject in rejects]


def limits(kind: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(kind.to_pandas_dtype())
    return int(info.min), int(info.max)


integer_columns = st.sampled_from(INTEGERS).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(st.none() | st.integers(*limits(kind)) | st.sampled_from(limits(kind)), min_size=1),
    )
)


@given(integer_columns)
def test_an_integer_is_its_decimal_text(column: tuple[pa.DataType, list[int | None]]) -> None:
    kind, values = column
    for role, text_kind in (
        ("sparse", "integer"),
        ("sparse", "string"),
        ("dense", "integer"),
        ("dense", "float"),
    ):
        form = spec(LogColumn("x", role, text_kind))
        rows, rejected, _ = read(table_of(x=pa.array(values, kind)), form)
        expected, bad = expected_of(["" if value is None else str(value) for value in values], form)
        assert rejected == bad
        assert not (bad and text_kind == "string")
        assert all(same(found, right) for found, right in zip(rows, expected, strict=True))


decimals = st.tuples(st.integers(1, 26), st.integers(0, 12)).flatmap(
    lambda size: st.tuples(
        st.just(pa.decimal128(size[0] + size[1], size[1])),
        st.lists(
            st.none() | st.decimals(-(10 ** size[0]) + 1, 10 ** size[0] - 1, allow_nan=False, places=size[1]),
            min_size=1,
        ),
    )
)


@given(decimals)
def test_a_decimal_is_its_shortest_text(column: tuple[pa.DataType, list[decimal.Decimal | None]]) -> None:
    kind, values = column
    texts = ["" if value is None else f"{value:f}" for value in values]
    texts = [text.rstrip("0").rstrip(".") if "." in text else text for text in texts]
    texts = ["0" if text == "-0" else text for text in texts]
    for role, text_kind in (("sparse", "integer"), ("sparse", "string"), ("dense", "float")):
        form = spec(LogColumn("x", role, text_kind))
        rows, rejected, _ = read(table_of(x=pa.array(values, kind)), form)
        expected, bad = expected_of(texts, form)
        assert rejected == bad
        assert all(same(found, right) for found, right in zip(rows, expected, strict=True))


def expected_of(texts: list[str], form: Spec) -> tuple[list[reference.Row], list[int]]:
    """(the rows that the reference makes of the texts of the one column of ``form``, the numbers of bad ones)."""
    expected, bad = [], []
    for number, text in enumerate(texts):
        try:
            value = reference.parse_value(form.columns[0], text.encode(), form.null_values)
        except reference.Bad:
            bad.append(number)
            continue
        is_dense = form.columns[0].role == "dense"
        expected.append(with_keys(reference.Row(None, [value] * is_dense, [value] * (not is_dense))))
    return expected, bad


@given(
    st.sampled_from(TEXTS),
    st.sampled_from(
        [
            ("sparse", "string"),
            ("sparse", "hex"),
            ("sparse", "integer"),
            ("dense", "float"),
            ("dense", "integer"),
        ]
    ),
    st.lists(
        st.none() | st.text(max_size=5) | st.integers().map(str) | st.floats().map(str) | st.just("NULL"),
        min_size=1,
    ),
)
def test_a_string_is_a_field_of_text(
    kind: pa.DataType, role: tuple[str, str], values: list[str | None]
) -> None:
    values = [None if value is None else value.encode("utf-8", "ignore").decode() for value in values]
    form = Spec("of a test", "\t", None, False, (LogColumn("x", *role),), null_values=("NULL",))
    rows, rejected, _ = read(table_of(x=pa.array(values, kind)), form)
    expected, bad = expected_of([value or "" for value in values], form)
    assert rejected == bad
    assert len(rows) == len(expected)
    assert all(same(found, right) for found, right in zip(rows, expected, strict=True))


@given(st.lists(st.lists(st.none() | st.text("ab", max_size=2), min_size=1), min_size=1), st.integers(1, 9))
def test_row_groups_have_dictionaries_of_their_own(groups: list[list[str | None]], capacity: int) -> None:
    chunks = [pa.array(values, pa.string()).dictionary_encode() for values in groups]
    form = spec(LogColumn("x", "sparse", "string"))
    rows, rejected, _ = read(table_of(x=pa.chunked_array(chunks)), form, capacity)
    assert not rejected
    values = [value for group in groups for value in group]
    assert [row.sparse[0] for row in rows] == [reference.key_of(v) if v else None for v in values]


@given(
    st.sampled_from([pa.list_, pa.large_list, pa.list_view]),
    st.lists(st.none() | st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=4), min_size=1),
    st.booleans(),
)
def test_nulls_in_lists_are_missing_values_and_empty_alone(
    make: object, values: list[list[int | None] | None], as_text: bool
) -> None:
    items = [None if row is None else [None if v is None else str(v) for v in row] for row in values]
    array = pa.array(items, make(pa.string())) if as_text else pa.array(values, make(pa.int64()))
    form = spec(LogColumn("x", "sparse", "integer", "|"))
    rows, rejected, _ = read(table_of(x=array), form)
    assert not rejected
    assert [row.sparse[0] for row in rows] == [
        [] if row in (None, [None]) else [v if v is None else v & reference.MASK for v in row]
        for row in values
    ]


def test_a_text_with_separators_is_a_list() -> None:
    form = spec(LogColumn("x", "sparse", "string", "|"))
    rows, _, _ = read(table_of(x=pa.array(["a|b", "", None, "c"])), form)
    expected = [["a", "b"], [], [], ["c"]]
    assert [row.sparse[0] for row in rows] == [[reference.key_of(v) for v in row] for row in expected]


@pytest.mark.parametrize(
    ("kind", "large"), [(pa.float64(), 801608186555.0), (pa.float32(), 2.0**24 - 1), (pa.float16(), 2047.0)]
)
def test_whole_floats_are_integers_and_nan_is_missing(kind: pa.DataType, large: float) -> None:
    form = spec(
        LogColumn("x", "sparse", "integer"),
        LogColumn("y", "sparse", "string"),
        LogColumn("z", "dense", "integer"),
    )
    array = pa.array([large, math.nan, None, 2.5, -3.0]).cast(kind)
    rows, rejected, reasons = read(table_of(x=array, y=array, z=array), form)
    assert rejected == [3]
    assert "2.5" in reasons[0]
    whole = [int(large), None, None, -3]
    assert [row.sparse[0] for row in rows] == [None if v is None else v & reference.MASK for v in whole]
    assert [row.sparse[1] for row in rows] == [None if v is None else reference.key_of(str(v)) for v in whole]
    assert [row.dense[0] for row in rows] == [None if v is None else float(v) for v in whole]


@given(
    st.sampled_from(["UTC", "Asia/Tokyo", "America/St_Johns", "Pacific/Auckland"]),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.lists(st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)), min_size=1),
)
def test_days_hours_and_weekdays_of_any_zone_are_utc(
    zone: str, unit: str, times: list[datetime.datetime]
) -> None:
    moments = [time.replace(microsecond=0, tzinfo=datetime.UTC) for time in times]
    columns = (LogColumn("day", "sparse", "integer"), LogColumn("at", "time", "iso"))
    derived = tuple(
        LogColumn(kind, "sparse", "integer", rule=kind, of=("at",)) for kind in ("hour", "weekday")
    )
    form = Spec("of a test", "\t", None, False, columns, derived=derived)
    array = pa.array(moments, pa.timestamp(unit, zone))
    rows, rejected, _ = read(table_of(day=array, at=array), form)
    assert not rejected
    days = [(moment.date() - datetime.date(1970, 1, 1)).days & reference.MASK for moment in moments]
    expected = [[day, moment.hour, moment.weekday()] for day, moment in zip(days, moments, strict=True)]
    assert [row.sparse for row in rows] == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_is_seconds_or_days_since_1970(unit: str) -> None:
    times = [datetime.datetime(2026, 11, 22, 23, 59, 59), datetime.datetime(1969, 12, 31, 1), None]
    array = pa.array(times, pa.timestamp(unit))
    form = spec(LogColumn("day", "sparse", "integer"), LogColumn("seconds", "dense", "float"))
    rows, _, _ = read(table_of(day=array, seconds=array), form)
    epoch = datetime.datetime(1970, 1, 1)
    seconds = [None if time is None else (time - epoch).total_seconds() for time in times]
    assert [row.dense[0] for row in rows] == seconds
    days = [None if s is None else math.floor(s / 86400) & reference.MASK for s in seconds]
    assert [row.sparse[0] for row in rows] == days
    dates = array.cast(pa.date32(), safe=False)
    assert [row.sparse[0] for row in read(table_of(day=dates, seconds=dates), form)[0]] == days


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([1, 0, 2, None]),
        pa.array([1, 0, 2, None]).cast(pa.decimal128(20, 1)),
        pa.array([True, False, None, None]),
        pa.array(["1", "false", "x", ""]),
        pa.array([1.0, 0.0, 0.5, math.nan]),
    ],
)
def test_a_label_is_0_or_1(labels: pa.Array) -> None:
    form = spec(LogColumn("y", "label"), LogColumn("x", "sparse", "integer"))
    rows, rejected, _ = read(table_of(y=labels, x=pa.array([1, 2, 3, 4])), form)
    assert [row.label for row in rows] == [1, 0]
    assert rejected == [2, 3]


def test_spans_are_where_the_strings_lie() -> None:
    words = ["", "bb", None, "ä", "bb", "dddd"]
    array = pa.chunked_array(
        [pa.array(words[:4]).dictionary_encode(), pa.array(words[4:]).dictionary_encode()]
    )
    form = spec(
        LogColumn("x", "sparse", "string"),
        LogColumn("n", "sparse", "integer"),
        LogColumn("l", "sparse", "string", "|"),
    )
    unit = ParquetUnit(0, 0, pa.table({"x": array, "n": range(6), "l": [["p", None, "qq"]] * 6}), 0, True)
    cursor = open_cursor(unit, form, keeps_spans=True)
    places, item_places = [], []
    for raw in cursor.rows(4, None):
        (_, spans), _, (_, item_spans) = raw.sparse_keys(form)
        places += spans.tolist()
        item_places += item_spans.tolist()
    texts = cursor.texts().tobytes()
    found = [texts[start:stop].decode() for start, stop in places]
    items = [texts[start:stop].decode() for start, stop in item_places]
    assert [text for text, word in zip(found, words, strict=True) if word] == [word for word in words if word]
    assert items == ["p", "", "qq"] * 6


@given(
    st.lists(st.none() | st.integers(0, 9), min_size=0, max_size=60),
    st.integers(1, 60),
    st.integers(1, 700),
    st.randoms(use_true_random=False),
)
def test_units_hold_every_row_once_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[int | None],
    group_rows: int,
    unit_bytes: int,
    random: object,
) -> None:
    path = tmp_path_factory.mktemp("units") / "clicks.parquet"
    texts = [None if value is None else str(value) for value in values]
    table = pa.table({"a": pa.array(values, pa.int64()), "b": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=group_rows)
    (source,) = find_files("input", str(path))
    units = units_of(source, 2, unit_bytes)
    numbers = list(range(len(units)))
    wanted = sorted(random.sample(numbers, random.randint(0, len(numbers))))
    shared: dict[range, list[int]] = {}
    for number in wanted:
        shared.setdefault(units[number].groups, []).append(number)
    columns = {"a": "a", "second": "b"}
    got = {
        unit.unit: unit
        for its in shared.values()
        for unit in ParquetFeed(source, columns, unit_bytes, tuple(its)).items()
    }
    assert sorted(got) == wanted
    starts = np.cumsum([0, *(unit.stop - unit.start for unit in units)])
    assert starts[-1] == len(values)
    for number, unit in got.items():
        rows = slice(starts[number], starts[number + 1])
        assert unit.table.to_pydict() == {"a": values[rows], "second": texts[rows]}
        assert unit.finish().is_last == (number == len(units) - 1)


def test_keys_of_folders_are_columns(tmp_path: Path) -> None:
    folder = tmp_path / "dt=2026-11-22" / "country=c%C3%B4te" / "shop=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2]}), folder / "part-0.parquet")
    (source,) = find_files("input", str(folder / "part-0.parquet"))
    columns = {"day": "dt", "country": "country", "shop": "shop", "a": "a"}
    (unit,) = ParquetFeed(source, columns, 1 << 20, (0,)).items()
    assert unit.table.to_pylist() == [
        {"day": "2026-11-22", "country": "côte", "shop": None, "a": a} for a in (1, 2)
    ]


def test_a_file_that_becomes_shorter_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "clicks.parquet"
    pq.write_table(pa.table({"a": np.random.default_rng(0).random(500_000)}), path, row_group_size=500_000)
    (source,) = find_files("input", str(path))
    units = iter(ParquetFeed(source, {"a": "a"}, 1 << 20, tuple(range(4))).items())
    next(units)
    os.truncate(path, 1 << 16)
    with refused(
        DamagedFileError,
        ".../clicks.parquet",
        "cannot be read as Parquet: ...",
    ):
        list(units)


BAD_TEXT = pa.array([b"\xff", None], pa.binary())
SHOWN = [
    (pa.StringArray.from_buffers(2, BAD_TEXT.buffers()[1], BAD_TEXT.buffers()[2]), "\\xff\t7\t"),
    (BAD_TEXT, "\\xff\t7\t"),
    (BAD_TEXT.dictionary_encode(), "\\xff\t7\t"),
    (pa.array([2**60, 0], pa.timestamp("us")), "a time outside of the years 1 to 9999\t7\t"),
    (pa.array([2_000_000_000, 0], pa.date32()), "a time outside of the years 1 to 9999\t7\t"),
    (pa.array([1, 0], pa.timestamp("us")), "1970-01-01 00:00:00.000001\t7\t"),
]


@pytest.mark.parametrize(("beside", "excerpt"), SHOWN)
def test_a_reject_shows_its_row_whatever_stands_beside(beside: pa.Array, excerpt: str) -> None:
    form = spec(LogColumn("x", "ignore"), LogColumn("label", "label"), LogColumn("y", "sparse", "string"))
    columns = {"x": beside, "label": pa.array([7, 1]), "y": pa.array([None, "a"], pa.string())}
    cursor = ArrowCursor(pa.table(columns), form)
    assert sum(len(raw.labels) for raw in cursor.rows(10, None)) == 1
    assert [reject.excerpt for reject in cursor.take_rejects()] == [excerpt]


@pytest.mark.parametrize("capacity", [7, 29, 64, 200])
@pytest.mark.parametrize("kind", ["integer", "hex"])
def test_nulls_at_any_place_of_a_slice_are_missing(kind: str, capacity: int) -> None:
    draw = np.random.default_rng(capacity)
    texts = [None if is_null else str(10 + n) for n, is_null in enumerate(draw.random(200) < 0.3)]
    form = spec(LogColumn("x", "dense" if kind == "integer" else "sparse", kind))
    if kind == "integer":
        values = pa.array([text and int(text) for text in texts], pa.int64())
    else:
        values = pa.array(texts, pa.string()).cast(pa.string_view())
    rows, rejected, _ = read(table_of(x=values), form, capacity)
    expected, bad = expected_of([text or "" for text in texts], form)
    assert rejected == bad == []
    assert all(same(found, right) for found, right in zip(rows, expected, strict=True))


BEYOND = [
    pa.array([2**31 - 1, 0, None], pa.int32()).view(pa.date32()),
    *(
        pa.array([2**63 - 1, 0, None], pa.int64()).view(kind)
        for kind in (pa.date64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"))
    ),
]


@pytest.mark.parametrize("times", BEYOND, ids=lambda times: str(times.type))
@pytest.mark.parametrize(
    "column",
    [
        LogColumn("x", "sparse", "string"),
        LogColumn("x", "sparse", "integer"),
        LogColumn("x", "dense", "float"),
        LogColumn("x", "time", "iso"),
    ],
    ids=lambda column: column.kind,
)
def test_a_time_outside_of_the_years_is_refused_by_name(times: pa.Array, column: LogColumn) -> None:
    rows, places, reasons = read(pa.table({"x": times}), spec(column))
    assert (len(rows), places) == (2, [0])
    assert "x is a time outside of the years 1 to 9999" in reasons[0]
    assert "write null" in reasons[0]


def test_old_times_of_spark_keep_their_year(tmp_path: Path) -> None:
    moments = [datetime.datetime(year, 12, 31, 5) for year in (1, 1600, 2026, 9999)]
    table = pa.table({"x": pa.array(moments, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    (source,) = find_files("input", str(tmp_path / "old.parquet"))
    (unit,) = ParquetFeed(source, {"x": "x"}, 1 << 20, (0,)).items()
    assert unit.table["x"].to_pylist() == moments
