"""Preprocessing, slow and obvious: plain Python over lists, written from docs/how-to/preprocessing.md alone."""

import datetime
import math
import re
import struct
from collections import Counter
from dataclasses import dataclass

from dlrm_app.logs.spec import OTHER_LABEL, LogColumn, Spec

MISSING = None
MASK = (1 << 64) - 1
INTEGER = re.compile(rb"[+-]?[0-9]+")
WHOLE_FLOAT = re.compile(rb"(\+?0*|-(?=[1-9]|0+\.))([0-9]+)\.0*")
FLOAT = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
HEX = re.compile(rb"[0-9a-fA-F]{1,8}")
LABEL = re.compile(rb"(0|1)(\.0*)?|(?i:false|(true))")
MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[tT ](\d\d:\d\d)(?:(:\d\d)(?:\.(\d+))?)?([zZ]|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
MAX_LINE = 1 << 20
BLANKS = b" \t\r\n"


@dataclass
class Row:
    """The raw values of one good line: numbers, strings, None where missing, lists in list columns."""

    label: int | None
    dense: list[float | None]
    sparse: list[object]
    others: tuple[int | None, ...] = ()


class Bad(Exception):  # noqa: N818  # control flow of this file, not an error that anyone sees
    """The line is rejected; the message is a part of the reason that must be given."""


def opens_quote(field: bytes, quote: bytes) -> bool:
    """True if ``field``, the rest of a line, begins a quoted value that does not end on it."""
    return bool(quote) and bool(re.fullmatch(quote + b"(?:[^" + quote + b"]|" + quote * 2 + b")*", field))


def split_fields(line: bytes, spec: Spec) -> list[tuple[bytes, str]]:
    """The fields of a line, unquoted, and how each is quoted: well, badly, or open, which does not end on the line."""
    delimiter, quote = spec.delimiter.encode(), (spec.quote or "").encode()
    fields = []
    rest = line
    while True:
        quoted = (
            re.match(quote + b"((?:[^" + quote + b"]|" + quote * 2 + b")*)" + quote, rest) if quote else None
        )
        if quoted and rest[quoted.end() : quoted.end() + 1] in (b"", delimiter):
            fields.append((quoted[1].replace(quote * 2, quote), "well"))
            rest = rest[quoted.end() :]
        else:
            field = rest.split(delimiter)[0]
            how = "badly" if quote and field.startswith(quote) else "well"
            fields.append((field, "open" if opens_quote(rest, quote) else how))
            rest = rest[len(field) :]
        if not rest:
            return fields
        rest = rest[1:]


def is_null(column: LogColumn, field: bytes, nulls: tuple[str, ...]) -> bool:
    """True if ``field`` is a null word, or the same number as one; hex ids are numbers too."""
    for word in map(str.encode, nulls):
        if field == word:
            return True
        if column.kind == "hex" and HEX.fullmatch(field) and HEX.fullmatch(word):
            if int(field, 16) == int(word, 16):
                return True
        elif column.kind in ("integer", "float") and FLOAT.fullmatch(field) and FLOAT.fullmatch(word):
            is_exact = column.role == "sparse" and all(
                INTEGER.fullmatch(text) and abs(int(text)) < 1 << 63 for text in (field, word)
            )
            if int(field) == int(word) if is_exact else float(field) == float(word) < math.inf:
                return True
        elif column.role == OTHER_LABEL:
            labels = label_of(field), label_of(word)
            if labels[0] is not None and labels[0] == labels[1]:
                return True
            is_number = labels[0] is None and FLOAT.fullmatch(field) and FLOAT.fullmatch(word)
            if is_number and float(field) == float(word) < math.inf:
                return True
    return False


def label_of(field: bytes) -> int | None:
    """0 or 1; None for what is neither."""
    found = LABEL.fullmatch(field)
    return int(found[1] == b"1" or found[3] is not None) if found else None


def parse_value(column: LogColumn, field: bytes, nulls: tuple[str, ...]) -> object:
    field = field.strip(BLANKS) if column.kind in ("integer", "float") or column.separator else field
    if field == b"" or is_null(column, field, nulls):
        return MISSING
    if column.kind == "integer" and INTEGER.fullmatch(field) and abs(int(field)) < 1 << 63:
        return int(field)
    if column.kind == "integer" and WHOLE_FLOAT.fullmatch(field) and abs(float(field)) < 1 << 53:
        return int(float(field))
    if column.kind == "hex" and HEX.fullmatch(field):
        return int(field, 16)
    if column.kind == "float" and FLOAT.fullmatch(field) and abs(float(field)) < 3.4028235677973366e38:
        return float(field)
    if column.kind == "string" and b"\0" not in field:
        try:
            return canonical(field.decode("utf-8"))
        except UnicodeDecodeError:
            pass
    raise Bad(column.name)


def canonical(text: str) -> str:
    """The notation of a string whose key all notations of its value have."""
    if text.lower() in ("true", "false"):
        return text.lower()
    found = MOMENT.fullmatch(text)
    if found is None:
        return text
    date, clock, second, fraction, zone = found.groups()
    offset = re.sub(r"^([+-]\d\d):?(\d\d)?$", lambda m: f"{m[1]}:{m[2] or '00'}", zone or "Z")
    try:
        moment = datetime.datetime.fromisoformat(f"{date}T{clock}{second or ':00'}{offset}")
        moment = moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return text
    fraction = (fraction or "").rstrip("0")
    if not fraction and moment.time() == datetime.time():
        return f"{moment:%Y-%m-%d}".rjust(10, "0")
    return f"{moment:%Y-%m-%d %H:%M:%S}".rjust(19, "0") + f".{fraction}" * bool(fraction)


def parse_line(line: bytes, spec: Spec) -> Row:
    if len(line) > MAX_LINE:
        raise Bad("longer than")
    line = line.removesuffix(b"\r")
    if not line:
        raise Bad("blank line")
    fields = split_fields(line, spec)
    for column, (_, how) in zip(spec.columns, fields, strict=False):
        if how == "open":
            raise Bad(f"{column.name} is ")
    if len(fields) != len(spec.columns):
        raise Bad(f"{len(fields)} columns")
    row, others = Row(None, [], []), {}
    nulls = spec.null_values
    for column, (field, how) in zip(spec.columns, fields, strict=True):
        if column.role == "ignore":
            continue
        if how == "badly":
            raise Bad(column.name)
        if column.role == "label":
            row.label = label_of(field.strip(BLANKS))
            if row.label is None:
                raise Bad(column.name)
        elif column.role == OTHER_LABEL:
            field = field.strip(BLANKS)
            is_missing = field == b"" or is_null(column, field, nulls)
            others[column.name] = None if is_missing else label_of(field)
            if not is_missing and others[column.name] is None:
                raise Bad(column.name)
        elif column.role == "dense":
            row.dense.append(parse_value(column, field, nulls))
        elif column.separator is not None:
            is_missing = field == b"" or field in map(str.encode, nulls)
            pieces = [] if is_missing else field.split(column.separator.encode())
            values = [parse_value(column, piece, nulls) for piece in pieces]
            row.sparse.append([] if values == [MISSING] else values)
        else:
            row.sparse.append(parse_value(column, field, nulls))
    row.others = tuple(others[label.name] for label in spec.labels[1:])
    return row


def parse_file(text: bytes, spec: Spec) -> tuple[list[Row], list[tuple[int, str]]]:
    """(good rows, [(1-based line, a part of the reason)])."""
    lines = text.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    rows, rejects = [], []
    for number, line in enumerate(lines, 1):
        if spec.header and number == 1:
            continue
        try:
            rows.append(parse_line(line, spec))
        except Bad as reason:
            rejects.append((number, str(reason)))
    return rows, rejects


def key_of(value: object) -> int:
    """The 64-bit key of a value that is not missing."""
    if isinstance(value, int):
        return value & MASK
    key = 0xCBF29CE484222325
    for byte in value.encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK
    return key + (key == 1 << 63)


def seconds_of(text: str) -> float:
    """A time as of ISO 8601, in seconds since 1970; in UTC where the text names no offset."""
    time = datetime.datetime.fromisoformat(text)
    time = time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time
    return (time - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(seconds=1)


def hour_and_weekday(seconds: float) -> tuple[int, int]:
    time = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=math.floor(seconds))
    return time.hour, time.weekday()


def cross_key(values: list[object]) -> int | None:
    """FNV-1a of the keys of all values, 8 bytes each, the lowest first."""
    if all(value is MISSING for value in values):
        return MISSING
    key = 0xCBF29CE484222325
    for value in values:
        for byte in (1 << 63 if value is MISSING else key_of(value)).to_bytes(8, "little"):
            key = ((key ^ byte) * 0x100000001B3) & MASK
    return key + (key == 1 << 63)


def is_in(item: object, history: list[object]) -> float | None:
    return MISSING if item is MISSING else float(item in history)


def mix(key: int) -> int:
    key = ((key ^ (key >> 33)) * 0xFF51AFD7ED558CCD) & MASK
    key = ((key ^ (key >> 33)) * 0xC4CEB9FE1A85EC53) & MASK
    return key ^ (key >> 33)


def content_hash(row: Row) -> int:
    """The hash of the content of a row whose values are numbers, hex digits or strings, without lists and times."""
    missing = 1 << 63
    bits = [
        0x7FC00000 if value is None else struct.unpack("<I", struct.pack("<f", value + 0.0))[0]
        for value in row.dense
    ]
    state = 0
    for value in [*bits, *(missing if value is None else key_of(value) for value in row.sparse)]:
        state = ((state ^ value) * 0x9E3779B97F4A7C15) & MASK
        state ^= state >> 29
    return mix(state)


def deal_key(hashed: int, seed: int, purpose: int) -> int:
    """The key by which a row is dealt to folds (purpose 1) or splits (2)."""
    return mix(hashed ^ ((seed * 0x9E3779B97F4A7C15 + purpose * 0xD1B54A32D192ED03 + 1) & MASK))


def hash_id(value: object, num_embeddings: int) -> int:
    if value is MISSING:
        return 0
    return 1 + ((mix(key_of(value)) >> 32) * (num_embeddings - 1) >> 32)


def make_vocabulary(values: list[object], min_count: int = 1, top_k: int | None = None) -> dict[object, int]:
    """Value → id, most frequent first, equal counts by key; 0 and 1 are for missing and rare values."""
    counts = Counter(value for value in values if value is not MISSING)
    often = [value for value, count in counts.items() if count >= min_count]
    often.sort(key=lambda value: (-counts[value], key_of(value)))
    return {value: 2 + place for place, value in enumerate(often[:top_k])}


def vocab_id(value: object, vocabulary: dict[object, int]) -> int:
    return 0 if value is MISSING else vocabulary.get(value, 1)


def float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def dense_value(value: float | None, transform: str) -> float:
    """The float32 that a raw dense value becomes."""
    if transform == "log1p":
        return float32(math.log(1 + max(value or 0, 0)))
    if transform == "log3":
        return float32(math.log(3 + max(value or 0, 0)))
    return float32(value or 0)
