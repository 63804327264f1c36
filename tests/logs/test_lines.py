"""The compiled parser gives what the slow reference gives, whatever the text."""

import math
import random
import struct
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.logs.parser import Parser
from dlrm_app.logs.sources import text_units
from dlrm_app.logs.spec import OTHER_LABEL, LogColumn, Spec
from dlrm_app.logs.strings import MISSING_KEY
from tests.preprocessing import reference

SPEC = Spec(
    "all kinds",
    ",",
    '"',
    False,
    (
        LogColumn("label", "label"),
        LogColumn("whole", "dense", "integer"),
        LogColumn("number", "dense", "float"),
        LogColumn("ignored", "ignore"),
        LogColumn("hex", "sparse", "hex"),
        LogColumn("integer", "sparse", "integer"),
        LogColumn("string", "sparse", "string"),
        LogColumn("hexes", "sparse", "hex", "|"),
        LogColumn("integers", "sparse", "integer", "|"),
        LogColumn("strings", "sparse", "string", "|"),
    ),
)
WITH_NULLS = replace(SPEC, null_values=("NULL", "-1", "\\N", "nan"))
WITH_NUMBERS = replace(
    SPEC, null_values=("-1.0", "0FF", "3.", "2e1", "1|2", 'a"b', "12345678901234567890123")
)
CRITEO = Spec(
    "like Criteo",
    "\t",
    None,
    False,
    (
        LogColumn("label", "label"),
        *(LogColumn(f"int_{place}", "dense", "integer") for place in range(3)),
        *(LogColumn(f"cat_{place}", "sparse", "hex") for place in range(4)),
    ),
)


def with_labels(spec: Spec) -> Spec:
    """``spec`` with two other labels, before and after all other columns, and not in the order of the columns."""
    like, order = LogColumn("like", OTHER_LABEL, "label"), LogColumn("order", OTHER_LABEL, "label")
    labels = LearntLabel("label"), LearntLabel("order", "label"), LearntLabel("like")
    return replace(spec, columns=(like, *spec.columns, order), labels=labels)


def parse(text: bytes, spec: Spec, capacity: int = 7) -> tuple[list[reference.Row], list[tuple[int, str]]]:
    """What the compiled parser makes of ``text``, in the reference's words; sparse values as keys."""
    if text and not text.endswith(b"\n"):
        text += b"\n"
    buffer = np.frombuffer(bytearray(text + bytes(text_units.PADDING)), np.uint8)
    parser = Parser(spec, capacity)
    rows: list[reference.Row] = []
    rejects = []
    at = line = 0
    while at < len(text):
        at, count, found = parser.parse(buffer, at, len(text), 1 << 62)
        rejects += [(line + r.line + 1, r.reason) for r in found]
        line += count
        rows += rows_of(parser.take(), spec)
    return rows, rejects


def rows_of(raw, spec: Spec) -> list[reference.Row]:
    places = {"one": 0, "list": 0}
    columns = []
    for column in spec.sparse:
        kind = "list" if column.separator else "one"
        slot = places[kind]
        places[kind] += 1
        if kind == "one":
            columns.append([None if key == MISSING_KEY else int(key) for key in raw.keys[slot]])
        else:
            ends, list_keys, _ = raw.lists[slot]
            keys = [None if key == MISSING_KEY else int(key) for key in list_keys[: ends[-1]]]
            columns.append([keys[a:b] for a, b in pairwise(ends)])
    labelled = spec.label is not None
    return [
        reference.Row(
            int(raw.labels[row]) if labelled else None,
            [None if math.isnan(values[row]) else float(values[row]) for values in raw.dense],
            [column[row] for column in columns],
            tuple(None if math.isnan(values[row]) else int(values[row]) for values in raw.other_labels),
        )
        for row in range(len(raw.labels))
    ]


def with_keys(row: reference.Row) -> reference.Row:
    def key(value: object) -> object:
        if isinstance(value, list):
            return [key(element) for element in value]
        return None if value is None else reference.key_of(value)

    return replace(row, sparse=[key(value) for value in row.sparse])


def same(found: reference.Row, expected: reference.Row) -> bool:
    """Floats may differ by two units in the last place of a double."""
    close = all(
        (a is None) == (b is None) and (a is None or abs(a - b) <= 2 * math.ulp(b))
        for a, b in zip(found.dense, expected.dense, strict=True)
    )
    return close and replace(found, dense=[]) == replace(expected, dense=[])


def check(text: bytes, spec: Spec, capacity: int = 7) -> None:
    rows, rejects = parse(text, spec, capacity)
    expected_rows, expected_rejects = reference.parse_file(text, spec)
    assert [line for line, _ in rejects] == [line for line, _ in expected_rejects]
    for (_, reason), (_, part) in zip(rejects, expected_rejects, strict=True):
        assert part in reason
    assert len(rows) == len(expected_rows)
    for found, expected in zip(rows, expected_rows, strict=True):
        assert same(found, with_keys(expected)), (found, expected)


digits = st.text("0123456789", min_size=1, max_size=20)
junk = st.binary(max_size=6).filter(lambda piece: b"\n" not in piece)
NASTY = b"- + . 1e e5 1. .5 -0 1e400 1e-400 nan inf 0x1 NULL \\N -1 1_0 9223372036854775807".split()
NASTY += [
    b"",
    b" ",
    b" 1",
    b"1\t ",
    b" -1",
    b" NULL ",
    b"-9223372036854775808",
    b"3.4028235677973366e38",
    b"\xd9\xa1",
    b"1" * 30,
]
integers = st.one_of(st.integers(-300, 300), st.integers(-(1 << 65), 1 << 65)).map(
    lambda value: str(value).encode()
)
floats = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: repr(value).encode()),
    st.tuples(digits, digits, st.integers(-50, 50)).map(
        lambda parts: f"{parts[0]}.{parts[1]}e{parts[2]}".encode()
    ),
)
hexes = st.text("0123456789abcdefABCDEFg", max_size=9).map(str.encode)
strings = st.one_of(st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")), junk)
odd = st.one_of(st.sampled_from(NASTY), junk)


def lists_of(elements: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(elements, max_size=4).map(b"|".join)


def quoted(fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    in_quotes = fields.map(lambda field: b'"' + field.replace(b'"', b'""') + b'"')
    return st.one_of(fields, fields, in_quotes, st.one_of(odd, in_quotes))


def a_line(spec: Spec) -> st.SearchStrategy[bytes]:
    by_kind = {"integer": integers, "float": floats, "hex": hexes, "string": strings}
    by_kind |= {None: strings, "label": strings}
    fields = []
    for column in spec.columns:
        field = (
            st.sampled_from([b"0", b"1", b"1.0", b"True", b"FALSE", b"2", b"-1"])
            if column.role == "label"
            else by_kind[column.kind]
        )
        if column.role == OTHER_LABEL:
            field = st.sampled_from([b"0", b"1", b"", b"NULL", b"0.00", b"true", b"2", b"-1", b"-1.0", b"01"])
        field = lists_of(field) if column.separator else field
        fields.append(quoted(field) if spec.quote else st.one_of(field, field, field, st.just(b""), odd))
    whole = st.tuples(*fields).map(spec.delimiter.encode().join)
    broken = st.one_of(
        junk, st.binary(max_size=40), st.lists(odd, max_size=12).map(spec.delimiter.encode().join)
    )
    return st.one_of(whole, whole, whole, whole, broken).map(lambda line: line.replace(b"\n", b""))


def texts(spec: Spec) -> st.SearchStrategy[bytes]:
    ends = st.sampled_from([b"\n", b"\n", b"\r\n"])
    last = st.sampled_from([b"\n", b"", b"\r\n"])
    pairs = st.lists(st.tuples(a_line(spec), ends).map(b"".join), max_size=12)
    return st.tuples(pairs.map(b"".join), a_line(spec), last).map(b"".join)


QUICK = settings(max_examples=100, suppress_health_check=list(HealthCheck))


@QUICK
@given(texts(SPEC), st.integers(1, 9), st.sampled_from([SPEC, WITH_NULLS, WITH_NUMBERS]))
@example(b'1,2,3,x,ff,5,"a""b",1|2,3|4,"c,d"|e\r\n', 3, SPEC)
@example(b'1,NULL,"nan",x,-1,\\N,"NULL",1|-1,NULL,a|NULL|b|\n-1,,,,,,,,,\nNULL,,,,,,,,,\n', 3, WITH_NULLS)
@example(b'1,-1,"-1.00",x,ff,-1.0,"a""b",0|fF,3|20|-1,"a""b"|b\n1,3,20,,00ff,20,,ff,3,1|2\n', 3, WITH_NUMBERS)
@example(b'1,2,"3\n4",x,ff,5,a,1,2,"b\n1,2,3,"x\n1,2,3,"x""\n1,2,3,x,ff,5,a,1,2,b,"c\n', 3, SPEC)
def test_any_text_of_all_kinds_is_parsed_as_the_reference_does(
    text: bytes, capacity: int, spec: Spec
) -> None:
    check(text, spec, capacity)


@QUICK
@given(
    texts(CRITEO),
    st.integers(1, 9),
    st.sampled_from([(), ("NULL", "\\N"), ("NULL", "-1"), ("ab",), ("-1.0", "0AB", "0")]),
)
def test_any_text_like_criteo_is_parsed_as_the_reference_does(
    text: bytes, capacity: int, nulls: tuple[str, ...]
) -> None:
    check(text, replace(CRITEO, null_values=nulls), capacity)


@QUICK
@given(texts(with_labels(SPEC)), st.sampled_from([SPEC, WITH_NULLS, WITH_NUMBERS]))
@example(b"0,1,2,3,x,ff,5,a,1|2,3|4,c|e,1\r\n,1,2,3,x,ff,5,a,1|2,3|4,c|e,\n", SPEC)
@example(b"-1.0,1,2,3,x,ff,5,a,1|2,3|4,c|e,NULL\nnan,1,2,3,x,ff,5,a,1|2,3|4,c|e,1.0\n", WITH_NULLS)
def test_other_labels_are_read_as_the_reference_does(text: bytes, spec: Spec) -> None:
    check(text, with_labels(spec))


@QUICK
@given(
    texts(with_labels(CRITEO)),
    st.integers(1, 9),
    st.sampled_from([(), ("NULL", "-1"), ("0",), ("1.0", "true")]),
)
def test_other_labels_are_read_as_the_reference_reads_them(
    text: bytes, capacity: int, nulls: tuple[str, ...]
) -> None:
    check(text, replace(with_labels(CRITEO), null_values=nulls), capacity)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_other_labels_of_plain_lines_are_read_many_at_a_time(end: bytes) -> None:
    """Missing ones too; a label of another form sends its line to the reader of single lines."""
    draw = random.Random(0)
    choices = [b"0", b"1", b""] * 20 + [b"1.0", b"2", b"true"]
    ends = [draw.choice(choices) for _ in range(3000)]
    text = b"".join(like + b"\t1\t7\t-7\t0\tab\t\t0\tff\t" + ends[-i] + end for i, like in enumerate(ends))
    check(text, with_labels(CRITEO), capacity=400)


@pytest.mark.parametrize("nulls", [("NULL",), ("7",), ("-7",), ("ab",), ("NULL", "0")])
def test_numeric_null_values_are_missing_in_plain_lines(nulls: tuple[str, ...]) -> None:
    lines = b"1\t7\t-7\t0\tab\t7\t0\tff\n" * 300 + b"1\tNULL\t-7\t0\tNULL\t7\t0\tff\n" * 3
    check(lines, replace(CRITEO, null_values=nulls), capacity=128)


@pytest.mark.parametrize("digits", [b"0", b"7", b"12345678", b"123456789", b"00000001", b"-12345678", b"+5"])
def test_integers_of_any_length_are_read(digits: bytes) -> None:
    check(b"1\t" + digits + b"\t\t-1\t\t\t\t\n", CRITEO)


@pytest.mark.parametrize(
    "digits", [b"0", b"f", b"DEADBEEF", b"deadbeef", b"0000000a", b"123456789", b"1234567g"]
)
def test_hex_of_1_to_8_digits_of_either_case_is_read(digits: bytes) -> None:
    check(b"1\t\t\t\t" + digits + b"\t\t\t" + digits, CRITEO)


def test_every_byte_beside_hex_digits_is_found() -> None:
    for byte in range(256):
        if bytes([byte]) not in b"\n\t":
            for place in range(8):
                field = b"abcdef01"[:place] + bytes([byte]) + b"abcdef01"[place + 1 :]
                check(b"0\t1\t2\t3\t" + field + b"\t\t\t\n", CRITEO)


@pytest.mark.parametrize("odd_every", [3, 50, 300])
def test_odd_lines_among_many_plain_ones(odd_every: int) -> None:
    draw = random.Random(odd_every)
    odd = [b"", b"\r", b"1", b"2\t1\t2\t3\ta\tb\tc\td", b"1\t-\t2\t3\ta\tb\tc\td", b"\0\xff"]
    odd += [b"1\t-12345678\t-0\t+1\tabcdef012\t\t\t", b"0\t1\t2\t3\tA\tb\t\tfffffffff", b"0\t\t\t\t\t\t\t\t"]
    odd += [b"0\t-1\t-99999999\t-123456789\tA\tb\t\tffffffff\r", b"1\t123456789\t\t\ta\t\t\t"]
    text = b""
    for _ in range(1500):
        numbers = [
            b"%d" % draw.randrange(-99, 10 ** draw.randint(1, 8)) if draw.random() < 0.7 else b""
            for _ in range(3)
        ]
        ids = [
            b"%x" % draw.getrandbits(draw.randint(1, 32)) if draw.random() < 0.7 else b"" for _ in range(4)
        ]
        plain = b"\t".join([draw.choice([b"0", b"1"]), *numbers, *ids])
        text += (draw.choice(odd) if draw.random() < 1 / odd_every else plain) + draw.choice([b"\n", b"\r\n"])
    too_long = b"0\t\t\t\t" + b"x" * text_units.MAX_LINE + b"\t\t\t\n"
    check(text + too_long + text, CRITEO, capacity=400)


def test_lists_longer_than_the_room_for_them_make_room() -> None:
    line = b"1,2,3,,,,," + b"|".join(b"%x" % (value % 251) for value in range(5000)) + b",1|2,\n"
    check(line * 20, SPEC, capacity=3)


def test_a_line_is_read_up_to_the_longest_allowed_length() -> None:
    start = b"1,2,3,,,,"
    fits = start + b"x" * (text_units.MAX_LINE - len(start) - 3) + b",,,"
    for line in (fits, fits.replace(b"xx", b"xxx", 1)):
        check(line + b"\n" + b"1,2,3,,,,,,,\n", SPEC)


def test_an_exponent_at_the_edges_of_doubles_is_read() -> None:
    fields = b"1e38 3.4e38 3.5e38 1e-320 4.9e-324 1e-999 0e99999999999".split()
    for field in [*fields, b"1" * 38 + b".5e-5"]:
        check(b"1,2," + field + b",,,,,,,\n", SPEC)


def test_float32_limit_is_where_rounding_gives_infinity() -> None:
    with pytest.raises(OverflowError):
        struct.pack("<f", 3.4028235677973366e38)
    struct.pack("<f", 3.4028235677973362e38)
