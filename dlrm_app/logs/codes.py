"""Codes by which compiled functions know the columns of a log."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dlrm_app.logs import fields
from dlrm_app.logs.spec import (
    ELEMENT_WEIGHTS,
    FORMATTED,
    OTHER_LABEL,
    VECTOR,
    LogColumn,
    Spec,
    list_slots,
    weight_slots,
)
from dlrm_app.logs.time_format import ROOM, compile_format

_KINDS: dict[str | tuple[str, str | None], int] = {
    "label": fields.LABEL,
    "weight": fields.WEIGHT,
    (OTHER_LABEL, "label"): fields.OTHER_LABEL,
    ELEMENT_WEIGHTS: fields.ELEMENT_WEIGHT,
    VECTOR: fields.VECTOR,
    ("dense", "integer"): fields.DENSE_INTEGER,
    ("dense", "float"): fields.DENSE_FLOAT,
    ("dense", "score"): fields.DENSE_SCORE,
    ("sparse", "integer"): fields.KEY_INTEGER,
    ("sparse", "hex"): fields.KEY_HEX,
    ("sparse", "string"): fields.KEY_STRING,
    ("time", "seconds"): fields.TIME_SECONDS,
    ("time", "milliseconds"): fields.TIME_MILLISECONDS,
    ("time", "microseconds"): fields.TIME_MICROSECONDS,
    ("time", "nanoseconds"): fields.TIME_NANOSECONDS,
    ("time", "iso"): fields.TIME_ISO,
    ("time", FORMATTED): fields.TIME_FORMAT,
}


def kind_code(column: LogColumn) -> int:
    """The code of a column's content in ``fields``."""
    if column.whole:
        return fields.KEY_WHOLE
    return _KINDS.get(column.role) or _KINDS.get((column.role, column.kind), fields.IGNORE)


def _format_codes(column: LogColumn) -> list[int]:
    codes = compile_format(column.format) if column.format else []
    return [*codes, *[0] * (ROOM - len(codes))]


def _separator_code(column: LogColumn, slots: Mapping[str, int]) -> int:
    """The code of a list: its separator, its brackets, and the mark of its weights, each in a byte, then the slot of
    these weights; -1 for a single value.
    """
    if not column.separator:
        return -1
    marks = (column.separator, *(column.brackets or "\0\0"), column.weights or "\0")
    slot = slots[column.written_weights.name] if column.weights else 0
    return int.from_bytes("".join(marks).encode(), "little") | slot << 32


def column_codes(spec: Spec) -> NDArray[np.int64]:
    """Codes for each column of the file, [C, 3 + …]: its content, its output column, its separator or -1, the format of
    a time, null words.

    The columns beside the dense ones come before these.
    """
    nulls = b"".join(bytes([len(text)]) + text for text in map(str.encode, spec.null_values))
    slots = {column.name: slot for slot, column in enumerate([*spec.extra_numbers, *spec.dense])}
    slots |= {name: slot for name, (_, slot) in list_slots(spec).items()}
    slots |= {name: slot for name, (slot, _) in weight_slots(spec).items()}
    slots |= vector_slots(spec)
    codes = [
        (
            kind_code(column),
            slots.get(column.name, 0),
            _separator_code(column, slots),
            *_format_codes(column),
            *nulls,
        )
        for column in spec.fields
    ]
    return np.array(codes, np.int64)


def vector_slots(spec: Spec) -> dict[str, int]:
    """Column of vectors → the number of its array in the parser, behind the lists and the weights."""
    num_lists = sum(column.separator is not None for column in spec.sparse)
    first = num_lists + len(spec.element_weights)
    return {column.name: slot for slot, column in enumerate(spec.vectors, first)}


def sized_codes(spec: Spec) -> NDArray[np.int64]:
    """The columns whose lists have given numbers of elements [W, 4]: element weights (the column's place, the slots of
    its lists and of theirs, 0), then vectors (place, slot, -1, size).
    """
    weights, vectors = weight_slots(spec), vector_slots(spec)
    places = [*enumerate(spec.fields)]
    sized = [(place, *weights[c.name], 0) for place, c in places if c.role == ELEMENT_WEIGHTS]
    sized += [(place, vectors[c.name], -1, c.size or 0) for place, c in places if c.role == VECTOR]
    return np.array(sized, np.int64).reshape(-1, 4)
