"""Preprocessing, slow and obvious: plain Python over lists, written from docs/how-to/preprocessing.md and not from the code."""

import math
import re
import struct
from collections import Counter
from dataclasses import dataclass

from dlrm_app.preprocess.read.spec import Column, Spec

MISSING = None
MASK = (1 << 64) - 1
INTEGER = re.compile(rb"[+-]?[0-9]+")
FLOAT = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
HEX = re.compile(rb"[0-9a-fA-F]{1,8}")
MAX_LINE = 1 << 20


@dataclass
class Row:
    """The raw values of one good line: numbers, strings, None where missing, lists in list columns."""

    label: int | None
    dense: list[float | None]
    sparse: list[object]


class Bad(Exception):  # noqa: N818  # control flow of this file, not an error that anyone sees
    """The line is rejected; the message is a part of the reason that must be given."""


def split_fields(line: bytes, spec: Spec) -> list[tuple[bytes, bool]]:
    """The fields of a line, unquoted, and whether each is well quoted."""
    delimiter, quote = spec.delimiter.encode(), (spec.quote or "").encode()
    fields = []
    rest = line
    while True:
        quoted = (
            re.match(quote + b"((?:[^" + quote + b"]|" + quote * 2 + b")*)" + quote, rest) if quote else None
        )
        if quoted and rest[quoted.end() : quoted.end() + 1] in (b"", delimiter):
            fields.append((quoted[1].replace(quote * 2, quote), True))
            rest = rest[quoted.end() :]
        else:
            field = rest.split(delimiter)[0]
            fields.append((field, not (quote and field.startswith(quote))))
            rest = rest[len(field) :]
        if not rest:
            return fields
        rest = rest[1:]


def parse_value(column: Column, field: bytes) -> object:
    if field == b"":
        return MISSING
    if column.kind == "integer" and INTEGER.fullmatch(field) and abs(int(field)) < 1 << 63:
        return int(field)
    if column.kind == "hex" and HEX.fullmatch(field):
        return int(field, 16)
    if column.kind == "float" and FLOAT.fullmatch(field) and abs(float(field)) < 3.4028235677973366e38:
        return float(field)
    if column.kind == "string" and b"\0" not in field:
        try:
            return field.decode("utf-8")
        except UnicodeDecodeError:
            pass
    raise Bad(column.name)


def parse_line(line: bytes, spec: Spec) -> Row:
    if len(line) > MAX_LINE:
        raise Bad("longer than")
    line = line.removesuffix(b"\r")
    if not line:
        raise Bad("blank line")
    fields = split_fields(line, spec)
    if len(fields) != len(spec.columns):
        raise Bad(f"{len(fields)} columns")
    row = Row(None, [], [])
    for column, (field, well_quoted) in zip(spec.columns, fields, strict=True):
        if column.role == "ignore":
            continue
        if not well_quoted:
            raise Bad(column.name)
        if column.role == "label":
            if field not in (b"0", b"1"):
                raise Bad(column.name)
            row.label = int(field)
        elif column.role == "dense":
            row.dense.append(parse_value(column, field))
        elif column.separator is not None:
            pieces = field.split(column.separator.encode()) if field else []
            row.sparse.append([parse_value(column, piece) for piece in pieces])
        else:
            row.sparse.append(parse_value(column, field))
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


def mix(key: int) -> int:
    key = ((key ^ (key >> 33)) * 0xFF51AFD7ED558CCD) & MASK
    key = ((key ^ (key >> 33)) * 0xC4CEB9FE1A85EC53) & MASK
    return key ^ (key >> 33)


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
