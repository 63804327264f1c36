"""Derived columns are what plain Python makes of raw values, from text and Parquet; wrong ones are refused."""

import datetime
import zoneinfo
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import ConfigError
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.logs.spec import Spec
from tests.logs.test_lines import parse, rows_of
from tests.preprocessing import reference
from tests.preprocessing.running import content, rejects_of, run, table_of
from tests.refusals import refused

COLUMNS: list[dict[str, Any]] = [
    {"name": "y", "role": "label"},
    {"name": "age", "role": "dense", "kind": "integer"},
    {"name": "shown", "role": "time", "kind": "iso"},
    {"name": "joined", "role": "time", "kind": "milliseconds"},
    {"name": "shop", "role": "sparse", "kind": "integer"},
    {"name": "item", "role": "sparse", "kind": "string"},
    {"name": "items", "role": "sparse", "kind": "string", "separator": "|"},
]
DERIVED: list[dict[str, Any]] = [
    {"name": "pair", "kind": "cross", "of": ["item", "shop", "hour"]},
    {"name": "hour", "kind": "hour", "of": "shown"},
    {"name": "weekday", "kind": "weekday", "of": ["shown"]},
    {"name": "hour_joined", "kind": "hour", "of": ["joined"]},
    {"name": "waited", "kind": "seconds_since", "of": ["shown", "joined"]},
    {"name": "in_list", "kind": "in_list", "of": ["item", "items"]},
]
ZONES = [None, "Z", "+00:00", "-0330", "+14"]

Row = tuple[Any, ...]
item_names = st.sampled_from(["a", "b", "ö", "x y"])
# microseconds of other years are more than a double tells apart
times = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)) | st.datetimes(
    datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30)
).map(lambda time: time.replace(microsecond=0))
tables = st.lists(
    st.tuples(
        st.none() | st.tuples(times, st.sampled_from(ZONES)),
        st.none() | st.integers(-(10**13), 10**13),
        st.none() | st.integers(-(2**62), 2**62),
        st.none() | item_names,
        st.lists(st.none() | item_names, max_size=4).filter(lambda items: items != [None]),
    ),
    min_size=1,
    max_size=12,
)


def spec_of(derived: Any = DERIVED, columns: Any = COLUMNS) -> Spec:
    return read_spec(DatasetConfig(name="of a test", delimiter=",", columns=columns, derived=derived))


def text_of(time: tuple[datetime.datetime, str | None] | None) -> str:
    return "" if time is None else f"{time[0].isoformat(' ')}{time[1] or ''}"


def expected_rows(rows: list[Row]) -> list[reference.Row]:
    expected = []
    for time, joined, shop, item, items in rows:
        shown = None if time is None else reference.seconds_of(text_of(time))
        hour, weekday = (None, None) if shown is None else reference.hour_and_weekday(shown)
        since = None if joined is None else joined / 1000
        hour_joined = None if since is None else reference.hour_and_weekday(since)[0]
        waited = None if shown is None or since is None else shown - since
        key = [None if value is None else reference.key_of(value) for value in (shop, item)]
        keys = [None if value is None else reference.key_of(value) for value in items]
        made = [reference.cross_key([item, shop, hour]), hour, weekday, hour_joined]
        dense = [41.0, waited, reference.is_in(item, items)]
        expected.append(reference.Row(1, dense, [*key, keys, *made]))
    return expected


@given(tables)
def test_text_is_read_like_plain_python_reads_it(rows: list[Row]) -> None:
    lines = [
        f"1,41,{text_of(time)},{'' if joined is None else joined},{'' if shop is None else shop},{item or ''},"
        + "|".join(value or "" for value in items)
        for time, joined, shop, item, items in rows
    ]
    found, rejects = parse("\n".join(lines).encode(), spec_of())
    assert (found, rejects) == (expected_rows(rows), [])


@given(
    st.lists(st.lists(item_names, max_size=6), min_size=1, max_size=12),
    st.sampled_from(["first", "last"]),
    st.integers(1, 7),
    st.booleans(),
)
def test_a_list_keeps_its_newest_elements(lists: list[list[str]], end: str, most: int, is_text: bool) -> None:
    """As Python's slices do, from text and Parquet, and columns that are derived from it see no others."""
    columns = [each | ({end: most} if each["name"] == "items" else {}) for each in (COLUMNS[0], *COLUMNS[5:])]
    form = spec_of([{"name": "in_list", "kind": "in_list", "of": ["item", "items"]}], columns)
    kept = [items[:most] if end == "first" else items[-most:] for items in lists]
    keys = [[reference.key_of(value) for value in items] for items in kept]
    if is_text:
        found, _ = parse("\n".join(f"1,a,{'|'.join(items)}" for items in lists).encode(), form)
    else:
        stored = {"y": [1] * len(lists), "item": ["a"] * len(lists), "items": lists}
        table = pa.table(
            stored, pa.schema([("y", pa.int8()), ("item", pa.string()), ("items", pa.list_(pa.string()))])
        )
        ((raw, *_),) = [(raw,) for raw in ArrowCursor(table, form).rows(20, None)]
        found = rows_of(raw, form)
    assert [row.dense[-1] for row in found] == [float("a" in items) for items in kept]
    assert [row.sparse[-1] for row in found] == keys


@given(tables, st.sampled_from(["text", "timestamp", "UTC"]))
def test_parquet_gives_the_same(rows: list[Row], kind: str) -> None:
    """A row whose label is bad is left out, and spoils no other."""
    rows = [(*row[:4], [value for value in row[4] if value is not None]) for row in rows]
    if kind != "text":  # times of the column's clock, and moments
        zone = None if kind == "timestamp" else "Z"
        rows = [(row[0] and (row[0][0], zone), *row[1:]) for row in rows]
    shown, joined, shop, item, items = zip(*rows, (None, None, None, None, []), strict=True)
    times = [time and time[0] for time in shown]
    if kind == "text":
        stored = pa.array([text_of(time) or None for time in shown], pa.string())
    else:
        stored = pa.array(times, pa.timestamp("us", None if kind == "timestamp" else "UTC"))
    table = pa.table(
        {
            "y": pa.array([1] * len(rows) + [7]),
            "age": pa.array([41] * len(rows) + [40]),
            "shown": stored,
            "joined": pa.array(joined, pa.int64()),
            "shop": pa.array(shop, pa.int64()),
            "item": pa.array(item, pa.string()),
            "items": pa.array(items, pa.list_(pa.string())),
        }
    )
    cursor = ArrowCursor(table, spec_of())
    encoded = [(raw, [column.tolist() for column in raw.one_hot]) for raw in cursor.rows(20, None)]
    ((raw, one_hot),) = encoded
    assert rows_of(raw, spec_of()) == expected_rows(rows)
    assert one_hot == np.concatenate([raw.dense.view(np.uint64), raw.keys]).tolist()
    assert [reject.line for reject in cursor.take_rejects()] == [len(rows)]


TIMES_OF_ISO = """2026-11-23|2026-11-23 17:09|2026-11-23T17:09:08|2026-11-23T17:09:08.25Z|0001-01-01T06:00:00
2024-02-29T00:00:00.123456+01:00|2000-02-29 23:59:59-12:45|1900-03-01|2026-11-23T17:09:08.123456789-08
9999-12-31T23:59:58.500000000|9999-12-31T23:59:59""".replace("\n", "|").split("|")
NO_TIMES = """2026-11-3|2026-13-01|2026-00-01|2025-02-29|1900-02-29|2026-04-31|2026-11-23T|2026-11-23T24:00|2026112
2026-11-23T17:60|2026-11-23T17:09:60|2026-11-23T17:09:08.|2026-11-23x17:09:08|2026-11-23T17:09:08+01:00x|now
2026-11-23T17:09:08+1|2026-11-23T17:09:08+01:0|0000-12-31|1732381748""".replace("\n", "|").split("|")


def test_times_match_pythons_calendar() -> None:
    """Good ones to the second, a fraction to the last place of a double; others are rejected by name."""
    columns = [COLUMNS[0], {"name": "t", "role": "time", "kind": "iso"}, COLUMNS[3], COLUMNS[4]]
    spec = spec_of([{"name": "since", "kind": "seconds_since", "of": ["t", "joined"]}], columns)
    rows, rejects = parse("\n".join(f"1,{time},0,7" for time in TIMES_OF_ISO).encode(), spec)
    assert [row.dense for row in rows] == [[reference.seconds_of(time)] for time in TIMES_OF_ISO]
    assert rejects == []
    rows, rejects = parse("\n".join(f"1,{time},0,7" for time in NO_TIMES).encode(), spec)
    assert rows == []
    assert [reason.partition(", must be a time such as")[0] for _, reason in rejects] == [
        f"t is {time!r}" for time in NO_TIMES
    ]
    arrow = ArrowCursor(pa.table({"y": [1], "t": ["no"], "joined": [10**16], "shop": [7]}), spec)
    assert [len(raw.labels) for raw in arrow.rows(5, None)] == [0]
    assert [reject.column for reject in arrow.take_rejects()] == ["t"]


FORMATS = [
    "%d/%b/%Y:%H:%M:%S %z",
    "%m/%d/%y %I:%M %p",
    "%Y%m%d%H",
    "%d.%m.%Y",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%b %d %Y 100%%",
]
PLAIN_TIMES = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2068, 12, 31))


@given(
    st.sampled_from(FORMATS),
    st.lists(PLAIN_TIMES, min_size=1, max_size=8),
    st.sampled_from([0, -330, 840]),
    st.booleans(),
)
def test_times_in_a_format_match_strptime(
    form: str, times: list[datetime.datetime], minutes: int, is_text: bool
) -> None:
    zone = datetime.timezone(datetime.timedelta(minutes=minutes))
    texts = [time.replace(tzinfo=zone).strftime(form) for time in times]
    read = [datetime.datetime.strptime(text, form) for text in texts]
    moments = [each if each.tzinfo else each.replace(tzinfo=datetime.timezone.utc) for each in read]
    columns = [COLUMNS[0], {"name": "t", "role": "time", "format": form}, COLUMNS[3]]
    spec = spec_of([{"name": "since", "kind": "seconds_since", "of": ["t", "joined"]}], columns)
    assert found_times(spec, texts, is_text) == pytest.approx(
        [moment.timestamp() for moment in moments], abs=1e-6
    )


def test_values_that_are_not_times_in_the_format_are_rejected_by_name() -> None:
    columns = [COLUMNS[0], {"name": "t", "role": "time", "format": "%d/%b/%Y %H:%M %z"}, COLUMNS[3]]
    spec = spec_of([{"name": "since", "kind": "seconds_since", "of": ["t", "joined"]}], columns)
    good = ["1/feb/2024 7:05 Z", "29/Feb/2024 07:05 +01:30"]
    bad = [
        "30/Feb/2024 07:05 Z",
        "1/Fev/2024 07:05 Z",
        "1/Feb/2024 24:05 Z",
        "1/Feb/24 07:05 Z",
        "1/Feb/2024 07:05",
    ]
    bad += ["1/Feb/2024 07:05 Zx", "1/Feb/2024  07:05 Z", "2024-02-01 07:05", "1/Feb/2024 07:05 +1"]
    hours = [(2024, 2, 1, 7, 5), (2024, 2, 29, 5, 35)]
    moments = [datetime.datetime(*each, tzinfo=datetime.timezone.utc).timestamp() for each in hours]
    for is_text in (True, False):
        assert found_times(spec, [*good, *bad], is_text) == moments
    _, rejects = parse("\n".join(f"1,{text},0" for text in bad).encode(), spec)
    assert [reason for _, reason in rejects] == [
        f"t is {text!r}, must be a time as its format says" for text in bad
    ]


def found_times(spec: Spec, texts: list[str], is_text: bool) -> list[float | None]:
    """The times of the rows that are read, from CSV or Parquet."""
    if is_text:
        return [row.dense[-1] for row in parse("\n".join(f"1,{text},0" for text in texts).encode(), spec)[0]]
    table = pa.table({"y": [1] * len(texts), "t": texts, "joined": [0] * len(texts)})
    cursor = ArrowCursor(table, spec)
    return [row.dense[-1] for raw in cursor.rows(20, None) for row in rows_of(raw, spec)]


COMPACT = {
    "%Y%m%d": "20260228",
    "%Y%m%d%H": "2026022817",
    "%Y%m%d%H%M": "202402291759",
    "%Y%m%d%H%M%S": "00010101000059",
}
NO_COMPACT = [
    "20250229",
    "2026022824",
    "202602281760",
    "20260228175960",
    "202602281",
    "2026022817594512",
    "00000101",
]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float64(), "dictionary"])
def test_compact_times_are_the_same_from_text_and_parquet(kind: Any) -> None:
    columns = [COLUMNS[0], {"name": "t", "role": "time", "kind": "iso"}, COLUMNS[3], COLUMNS[4]]
    spec = spec_of([{"name": "since", "kind": "seconds_since", "of": ["t", "joined"]}], columns)
    times = [text for text in [*COMPACT.values(), *NO_COMPACT] if kind == pa.string() or text[0] != "0"]
    good = [
        (datetime.datetime.strptime(text, form) - datetime.datetime(1970, 1, 1)).total_seconds()
        for form, text in COMPACT.items()
        if text in times
    ]
    rows, rejects = parse("\n".join(f"1,{time},0,7" for time in times).encode(), spec)
    assert [row.dense for row in rows] == [[seconds] for seconds in good]
    stored = pa.array(times)
    if kind != pa.string():
        whole = stored.cast(pa.int64())
        stored = whole.dictionary_encode() if kind == "dictionary" else whole.cast(kind)
    table = pa.table(
        {"y": [1] * len(times), "t": stored, "joined": [0] * len(times), "shop": [7] * len(times)}
    )
    cursor = ArrowCursor(table, spec)
    assert [row.dense for raw in cursor.rows(99, None) for row in rows_of(raw, spec)] == [[s] for s in good]
    assert len(cursor.take_rejects()) == len(rejects) == len(times) - len(good)


def test_milliseconds_taken_for_seconds_are_rejected() -> None:
    columns = [*COLUMNS[:1], {"name": "t", "role": "time", "kind": "seconds"}, COLUMNS[4]]
    spec = spec_of([{"name": "hour", "kind": "hour", "of": "t"}], columns)
    rows, rejects = parse(b"1,1732381748.5,3\n1,1732381748500,3\n1,-1,3\n", spec)
    assert [row.sparse[1] for row in rows] == [17, 23]
    assert "t is '1732381748500', must be seconds since 1970" in rejects[0][1]
    assert "milliseconds" in rejects[0][1]


@given(
    st.sampled_from(
        ["Asia/Tokyo", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu"]
    ),
    st.lists(st.integers(0, 4_000_000_000), min_size=1, max_size=20),
)
def test_hours_and_weekdays_of_a_zone_are_its_local_ones(zone: str, times: list[int]) -> None:
    """As Python's own calendar has them, also across changes of the clock."""
    columns = [COLUMNS[0], {"name": "t", "role": "time", "kind": "seconds"}, COLUMNS[4]]
    derived = [{"name": kind, "kind": kind, "of": "t", "zone": zone} for kind in ("hour", "weekday")]
    rows, _ = parse("\n".join(f"1,{time},7" for time in times).encode(), spec_of(derived, columns))
    local = [datetime.datetime.fromtimestamp(time, zoneinfo.ZoneInfo(zone)) for time in times]
    assert [row.sparse[1:] for row in rows] == [[each.hour, each.weekday()] for each in local]


def test_the_offsets_of_a_zone_are_kept_with_the_column() -> None:
    spec = spec_of([{"name": "hour", "kind": "hour", "of": "shown", "zone": "Asia/Tokyo"}], COLUMNS[:3])
    assert spec.derived[0].derivation == {
        "kind": "hour",
        "of": ["shown"],
        "zone": "Asia/Tokyo",
        "offsets": [[0, 32400]],
    }


def made(kind: str, *of: str, name: str = "x") -> dict[str, Any]:
    return {"name": name, "kind": kind, "of": list(of)}


@pytest.mark.parametrize(
    ("derived", "key", "rule"),
    [
        (
            ["hour"],
            "dataset.derived[0]",
            "must be a mapping with name, kind, of, of kind hour, weekday, seconds_since...",
        ),
        ([made("croos", "shop", "item")], "dataset.derived[0]", "must be a mapping..."),
        (
            [made("cross", "shop", "stop")],
            "dataset.derived: x: stop",
            "must be a sparse column of one value, it is no column",
        ),
        ([made("cross", "shop", "shop")], "dataset.derived: x: of", "must name 2 different columns..."),
        (
            [made("cross", "shop", "age")],
            "dataset.derived: x: age",
            "must be a sparse column of one value, it is of role dense",
        ),
        (
            [made("cross", "shop", "items")],
            "dataset.derived: x: items",
            "must be ..., it is a sparse column of lists",
        ),
        (
            [made("cross", "shop", "item"), made("cross", "x", "shop", name="z")],
            "dataset.derived: z: x",
            "must be ..., it is a cross",
        ),
        ([made("cross", "shop", "item", name="shop")], "dataset.columns", "names two columns shop"),
        (
            [made("hour", "age")],
            "dataset.derived: x: age",
            "must be a column of role time, it is of role dense",
        ),
        (
            [made("in_list", "shop", "items")],
            "dataset.derived: x: of",
            "must name columns of one kind, shop and items differ",
        ),
        (
            [{**made("hour", "shown"), "zone": "Tokio"}],
            "dataset.derived[0].zone",
            "is no time zone that this machine knows",
        ),
        (
            [{**made("cross", "shop", "item"), "zone": "Asia/Tokyo"}],
            "dataset.derived[0]",
            "must be a mapping...",
        ),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(derived: Any, key: str, rule: str) -> None:
    with refused(ConfigError, key, rule):
        spec_of(derived)


OPTIONS: dict[str, tuple[str, ...]] = {
    "hash": ("encoding.num_embeddings=50", "dense.bucket_columns=[waited,in_list]"),
    "vocab": (
        "encoding=vocab",
        "encoding.min_count=2",
        "dense.target_columns=[pair,hour,shop]",
        "dense.transform=standardize",
    ),
}


def write_log(path: Path, rows: int = 400) -> Path:
    """A text log with derived columns, and its YAML beside it."""
    lines = [
        f"{n % 3 == 0:d},{n % 50},2026-11-{n % 28 + 1:02d}T{n % 24:02d}:{n % 60:02d}:00,{n * 10**9 % 10**12},{n % 5},"
        f"i{n % 7},{'|'.join(f'i{(n + place) % 9}' for place in range(n % 4))}"
        for n in range(rows)
    ]
    path.write_text("\n".join([",".join(column["name"] for column in COLUMNS), *lines, ""]))
    entries = [
        f"  - {{{', '.join(f'{k}: {v!r}' for k, v in entry.items())}}}" for entry in [*COLUMNS, *DERIVED]
    ]
    entries.insert(len(COLUMNS), "derived:")
    path.with_suffix(".yaml").write_text(
        "\n".join(["name: log", "delimiter: ','", "header: true", "columns:", *entries])
    )
    return path


def as_parquet(text: Path) -> Path:
    columns = {"items": pa.string(), "shown": pa.timestamp("us"), "item": pa.string()}
    table = csv.read_csv(
        text, convert_options=csv.ConvertOptions(column_types=columns, strings_can_be_null=True)
    )
    items = [None if value is None else value.split("|") for value in table["items"].to_pylist()]
    table = table.set_column(
        table.column_names.index("items"), "items", pa.array(items, pa.list_(pa.string()))
    )
    pq.write_table(table, text.with_suffix(".parquet"), row_group_size=90)
    return text.with_suffix(".parquet")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_text_parquet_and_known_encodings_give_one_dataset(tmp_path: Path, options: tuple[str, ...]) -> None:
    log = write_log(tmp_path / "log.csv")
    keys = (f"dataset={tmp_path}/log.yaml", "split.test=0.25")
    manifest = run(tmp_path / "text", f"input.train={log}", *keys, *options)
    run(tmp_path / "parquet", f"input.train={as_parquet(log)}", *keys, *options)
    skip = ["manifest.json"]
    assert content(tmp_path / "text", skip) == content(tmp_path / "parquet", skip)
    assert rejects_of(tmp_path / "text") == []
    derived = {
        column.name: rule["derived"]
        for column, rule in [(c, c.encoding) for c in manifest.sparse]
        + [(c, c.transform) for c in manifest.dense]
        if "derived" in rule
    }
    assert derived == {
        entry["name"]: {
            "kind": entry["kind"],
            "of": [entry["of"]] if isinstance(entry["of"], str) else entry["of"],
        }
        for entry in DERIVED
    }
    again = run(
        tmp_path / "again",
        f"input.test={log}",
        keys[0],
        "encoding=from_dataset",
        f"encoding.path={tmp_path}/text",
        *(option for option in options if option.startswith("dense.transform")),
    )
    test = table_of(manifest, "test")
    assert table_of(again, "test").slice(300) == test


def test_other_parts_are_another_encoding(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    yaml = tmp_path / "log.yaml"
    run(tmp_path / "first", f"input.train={log}", f"dataset={yaml}", "encoding.num_embeddings=50")
    other = yaml.read_text().replace("['item', 'shop', 'hour']", "['shop', 'item', 'hour']")
    (tmp_path / "other.yaml").write_text(other)
    keys = (f"dataset={tmp_path}/other.yaml", "encoding=from_dataset", f"encoding.path={tmp_path}/first")
    with refused(ConfigError, "encoding.path=.../first", "has other columns than dataset=log (pair)"):
        run(tmp_path / "second", f"input.test={log}", *keys)
