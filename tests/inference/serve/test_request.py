"""A request's values are read as a raw log's are, and each bad one is refused by row, column and rule."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.inference.serve.request import JsonRows, RequestError, Row, parse_body
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.parser import Parser
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.logs.sources.text_units import PADDING
from dlrm_app.logs.spec import LogColumn, Spec
from tests.inference.shop import SHOP, body_of
from tests.logs.test_lines import rows_of
from tests.preprocessing import reference


@pytest.fixture(scope="module")
def json_rows() -> JsonRows:
    return JsonRows(read_spec(DatasetConfig(**yaml.safe_load(SHOP))))


def read(rows: JsonRows, given: Sequence[object]) -> list[reference.Row]:
    """What the model reads of a request's rows."""
    (raw,) = ArrowCursor(rows.table(rows.read(body_of(given), 100).rows), rows.spec).rows(100, None)
    return rows_of(raw, rows.spec)


def read_line(line: str, spec: Spec) -> list[reference.Row]:
    text = np.frombuffer(bytearray(f"{line}\n".encode() + bytes(PADDING)), np.uint8)
    parser = Parser(spec, 1)
    parser.parse(text, 0, len(text) - PADDING, 1)
    return rows_of(parser.take(), spec)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            {"hour": 7, "price": 1.5, "user": "u1", "last_items": ["i1", "i2"], "shown_at": "2026-11-23"},
            "7,1.5,9,u1,i1|i2,,2026-11-23",
        ),
        (
            {"hour": 7.0, "price": "1.5", "user": 12, "last_items": ["i1", "", None, "i2"], "item": "i2"},
            "7,1.5,,12,i1|||i2,i2,",
        ),
        ({"hour": "7", "price": True, "user": True, "last_items": [3, "i1"], "item": 3}, "7,1,,true,3|i1,3,"),
        (
            {"hour": False, "price": 10**20, "user": "ü\\", "shown_at": 20261123, "clicked": 1},
            "0,1e20,,ü\\,,,20261123",
        ),
        ({"last_items": [None], "session": [1]}, ",,,,,,"),
        ({"last_items": None, "user": None}, ",,,,,,"),
        ({}, ",,,,,,"),
    ],
)
def test_a_row_is_read_as_its_line_in_the_log(json_rows: JsonRows, row: Row, line: str) -> None:
    """Alone, and among rows whose values are of other types."""
    spec = replace(read_spec(DatasetConfig(**yaml.safe_load(SHOP))).without_label(), header=False)
    (expected,) = read_line(line, spec)
    others = [{"hour": "3", "price": "2", "user": "u"}, {"hour": 3, "price": 2.5, "last_items": ["i", 5]}]
    assert read(json_rows, [row]) == [expected]
    assert read(json_rows, [*others, row])[-1] == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"usr": "u1"}, "'usr' is not a column of the model"),
        ({"hour": [1]}, "hour must be a single value, as in training, got [1]"),
        ({"user": {"id": 1}}, 'user must be a single value, as in training, got {"id": 1}'),
        ({"user": 1.5}, "user holds text: put the number in quotes, as it was written in training, got 1.5"),
        ({"user": "a\nb"}, 'user may not hold line ends or separators of records, got "a\\nb"'),
        ({"user": "\ud800"}, 'user is not UTF-8, got "\\ud800"'),
        ({"last_items": "i1|i2"}, 'last_items holds lists: put the value in [ ], got "i1|i2"'),
        (
            {"last_items": ["i1|i2"]},
            "last_items holds an item with '|', which separates items in the raw log, got [\"i1|i2\"]",
        ),
        (
            {"last_items": [["i1"]]},
            'last_items holds lists of single values, as in training, got [["i1"]]',
        ),
        (
            {"last_items": ["i1", {}]},
            'last_items holds lists of single values, as in training, got ["i1", {}]',
        ),
    ],
)
def test_a_bad_value_is_named(json_rows: JsonRows, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        json_rows.read(body_of([{}, row]), 2)
    assert (caught.value.status, caught.value.reason) == (422, f"row 1: {reason}")
    assert caught.value.problems[0].column == next(iter(row))


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"\xff{}", 400, "the body is not JSON"),
        (b'{"rows": [{"price": NaN}]}', 400, "NaN is not a JSON number"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b'{"rows": [{"hour": ' + b"1" * 5000 + b"}]}", 400, "the body is not JSON"),
        (b"[]", 400, "the body must be"),
        (b'{"rows": {}}', 400, "the body must be"),
        (b'{"rows": [], "model": 1}', 400, "the body must be"),
        (b'{"rows": []}', 422, "a request has 1 to limits.rows=2 rows, this one has 0"),
        (b'{"rows": [{"price": 1, "price": 2}]}', 400, "'price' is given twice"),
        (b'{"rows": [{}], "rows": [{}]}', 400, "'rows' is given twice"),
        (b'{"rows": [{}, {}, {}]}', 413, "this one has 3"),
        (b'{"rows": [{}, 1]}', 422, "row 1: a row is an object"),
    ],
)
def test_a_bad_body_is_refused(body: bytes, status: int, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_body(body, max_rows=2)
    assert caught.value.status == status
    assert reason in caught.value.reason


def test_the_first_bad_rows_are_named_and_the_others_counted(json_rows: JsonRows) -> None:
    with pytest.raises(RequestError) as caught:
        json_rows.read(body_of([{"hour": []}] * 20), 20)
    assert caught.value.reason.endswith("(and 19 rows more)")
    assert [problem.row for problem in caught.value.problems] == list(range(8))
    assert json.dumps(caught.value.reason)


def test_values_are_what_they_are_in_parquet() -> None:
    names = {"user": "string", "shop": "integer", "items": "string"}
    columns = [
        LogColumn(name, "sparse", kind, "|" if name == "items" else None) for name, kind in names.items()
    ]
    form = Spec("of a test", ",", None, True, tuple(columns), null_values=("NA", "-1"))
    given: list[dict[str, Any]] = [
        {"user": True, "shop": 7, "items": ["a", None, "b"]},
        {"user": False, "shop": None, "items": [None]},
        {"user": None, "shop": -1, "items": [""]},
        {"user": None, "shop": 5, "items": ["NA", None, "b"]},
        {"user": None, "shop": 5, "items": ["-1"]},
    ]
    rows = JsonRows(form)
    (raw,) = ArrowCursor(pa.Table.from_pylist(given), form).rows(10, None)
    assert read(rows, given) == rows_of(raw, form)


PARTS = st.sampled_from(
    [
        *'[]{}:,"\\ \t\n\x0c\ufeff',
        *("-0", "1.50", "12345678901234567890123", "true", "null", "NaN", "1e400"),
        *('"rows"', '"context"', '"price"', '"a:b"', '":"', r'"\":"', r'"é\u00e9"', r'"\ud800"', '""'),
    ]
)
NAMES = st.sampled_from(['"price"', '"user"', '"a:b"', r'"\":"', '":"'])


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Objects, with names that may be given twice and blanks around them."""
    pairs = st.tuples(NAMES, st.sampled_from([":", " :", "\n: ", ": "]), values).map("".join)
    return st.lists(pairs, max_size=3).map(lambda each: f"{{{','.join(each)}}}")


SCALARS = ["1", "-0.0", "2.5e3", '"u:1"', '":"', r'"\"\":"', "null", "false", "18446744073709551616"]
JSON_VALUES = st.recursive(
    st.sampled_from(SCALARS),
    lambda values: st.lists(values, max_size=3).map(lambda each: f"[{','.join(each)}]") | objects(values),
    max_leaves=6,
)


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Requests whose names may be given twice, some of them not JSON."""
    rows = draw(st.lists(objects(JSON_VALUES) | JSON_VALUES, max_size=4))
    names = draw(st.lists(st.sampled_from(["rows", "context", "x"]), min_size=1, max_size=3))
    given = {"rows": st.just(f"[{','.join(rows)}]"), "context": objects(JSON_VALUES), "x": JSON_VALUES}
    text = "{" + ",".join(f'"{name}":{draw(given[name])}' for name in names) + "}"
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(PARTS) + text[at + draw(st.integers(0, 2)) :]
    return text


@pytest.mark.long
@given(bodies() | st.lists(PARTS, max_size=12).map("".join), st.sampled_from(["utf-8", "utf-16"]))
@settings(max_examples=1500, deadline=None)
def test_a_body_is_read_as_the_json_module_reads_it(text: str, encoding: str) -> None:
    body = text.encode(encoding, "surrogatepass")
    with mock.patch.object(msgspec.json, "decode", side_effect=ValueError):
        expected = outcome(body)
    assert outcome(body) == expected


def outcome(body: bytes) -> str:
    """What is read, with the types of values, or why nothing is."""
    try:
        return repr(parse_body(body, 3))
    except RequestError as error:
        return f"{error.status} {error.reason}"


@pytest.mark.parametrize("blank", ["", " ", "\t", "\n", "\r", " \n"])
def test_a_name_given_twice_is_refused_wherever_blanks_and_colons_are(blank: str) -> None:
    for row in (f'"a"{blank}:1,"a":":"', f'"a":":",":"{blank}:2,"a"{blank}:3', f'"a":{{"b":1,"b"{blank}:2}}'):
        assert "is given twice" in outcome(f'{{"rows":[{{{row}}}]}}'.encode())


def test_a_context_of_very_many_names_is_refused(json_rows: JsonRows) -> None:
    """Also if the last of them is given twice, in time that does not grow with the square of their number."""
    names = ",".join(f'"k{number}":1' for number in range(200_000))
    for more, reason in (("", "is not a column of the model"), (',"k199999":2', "'k199999' is given twice")):
        with pytest.raises(RequestError, match=reason):
            json_rows.read(f'{{"context":{{{names}{more}}},"rows":[{{}}]}}'.encode(), 2)


def test_rows_may_change_the_types_of_their_columns(json_rows: JsonRows) -> None:
    """Each value is read as alone."""
    values = [1, "2", 3.0, True, None, "4.5", False, 10**20]
    rows = [{"price": value, "user": value if type(value) is not float else "x"} for value in values]
    assert read(json_rows, rows) == [read(json_rows, [row])[0] for row in rows]
