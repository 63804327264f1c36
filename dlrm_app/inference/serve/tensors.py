"""Named tensors of the Open Inference Protocol → a table of raw values."""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of
from dlrm_app.inference.serve.arrow_bodies import TableRequest, request_of_table
from dlrm_app.inference.serve.request import JsonRows, RequestError, refuse_size, refuse_twice
from dlrm_app.kernels.compiled import njit_uncounted
from dlrm_app.logs.spec import LogColumn

LENGTHS = ":lengths"
"""Behind the name of a list column: the input with the number of elements of each row."""
TEXTS = "BYTES"
_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "BOOL": ("?", pa.bool_()),
    **{f"INT{8 * size}": (f"<i{size}", getattr(pa, f"int{8 * size}")()) for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": (f"<u{size}", getattr(pa, f"uint{8 * size}")()) for size in (1, 2, 4, 8)},
    "FP32": ("<f4", pa.float32()),
    "FP64": ("<f8", pa.float64()),
    TEXTS: ("", pa.string()),
}
"""Data type of the protocol → (NumPy's, Arrow's)."""
_SIZE_BYTES = 4
"""Bytes of the size in front of each text."""


class _Form(msgspec.Struct):
    binary_data_size: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Tensor(msgspec.Struct):
    """An input of a request, in JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: _Form = msgspec.field(default_factory=_Form)
    data: list[Any] | None = None


def read_tensors(
    tensors: Sequence[Tensor], binary: Sequence[NDArray[np.uint8] | None], max_rows: int, described: JsonRows
) -> TableRequest:
    """The rows of ``tensors`` with the columns of ``described``. ``binary``: the binary form of each, None for data
    in JSON.

    Raises RequestError.
    """
    refuse_twice([each.name for each in tensors])
    read = {
        each.name: (each, data)
        for each, data in zip(tensors, binary, strict=True)
        if each.name.removesuffix(LENGTHS) not in described.unread
    }
    columns = {column.name: column for column in described.spec.columns if column.name in read}
    lists = {name + LENGTHS for name, column in columns.items() if column.separator is not None}
    if unknown := sorted(read.keys() - columns.keys() - lists):
        rule = "is not a column of the model, or the lengths of a list column that is given"
        raise RequestError(422, f"{unknown[0][:60]!r} {rule}")
    given = {name: _array(each, data, max_rows) for name, (each, data) in read.items()}
    arrays = {
        name: _column(column, given[name], read[name][0].shape, given.get(name + LENGTHS))
        for name, column in columns.items()
    }
    if len(sizes := {len(array) for array in arrays.values()}) > 1:
        shown = ", ".join(f"{name[:60]} {len(array)}" for name, array in arrays.items())
        raise RequestError(422, f"inputs have different numbers of rows: {shown}")
    refuse_size(max(sizes, default=0), max_rows)
    return request_of_table(pa.table(arrays), described.spec, described.unread)


def _array(tensor: Tensor, data: NDArray[np.uint8] | None, max_rows: int) -> pa.Array:
    """The values of an input, in one dimension. Raises RequestError."""
    if tensor.datatype not in _TYPES:
        raise RequestError(422, f"input {tensor.name[:60]}: datatype must be one of {', '.join(_TYPES)}")
    if not (len(tensor.shape) in (1, 2) and all(0 <= size < 1 << 31 for size in tensor.shape)):
        rule = f"shape must be [rows] or [rows, elements], got {str(tensor.shape)[:60]}"
        raise RequestError(422, f"input {tensor.name[:60]}: {rule}")
    if len(tensor.shape) == 2:  # also of no elements, which no data limits
        refuse_size(tensor.shape[0], max_rows)
    numpy_type, arrow_type = _TYPES[tensor.datatype]
    count = prod(tensor.shape)
    try:
        if data is None:
            array = pa.array(_flat(tensor.data or [], tensor.shape[-1], arrow_type), arrow_type)
        elif tensor.datatype == TEXTS:
            array = texts_of(data, count)
        else:
            array = pa.array(np.frombuffer(data, numpy_type).copy())  # aligned
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RequestError(422, f"input {tensor.name[:60]}: {reason}") from error
    if len(array) != count:
        reason = f"shape {tensor.shape} must have as many values as there are, {len(array)}"
        raise RequestError(422, f"input {tensor.name[:60]}: {reason}")
    return array


def _flat(values: list[Any], size: int, kind: pa.DataType) -> list[Any]:
    """``values`` in one dimension; they may be lists of ``size``. Raises ValueError for fractions where ``kind`` has
    none.
    """
    if values and all(type(value) is list for value in values):
        if {*map(len, values)} != {size}:
            raise ValueError(f"data in lists must be lists of {size} values, as its shape says")
        values = [*chain.from_iterable(values)]
    if pa.types.is_integer(kind) and any(type(value) is float for value in values):
        raise ValueError(f"data must be whole numbers, as its datatype says: {kind}")  # Arrow would cut them
    return values


def texts_of(data: NDArray[np.uint8], count: int) -> pa.Array:
    """The ``count`` texts in ``data``, each behind its size. Raises ValueError for damaged ones."""
    if not 0 <= _SIZE_BYTES * count <= len(data) < 1 << 31:
        raise ValueError(f"{len(data)} bytes do not hold {count} texts, each behind its size in 4 bytes")
    ends, texts = np.zeros(count + 1, np.int32), np.empty(len(data) - _SIZE_BYTES * count, np.uint8)
    if not join_texts(data, ends, texts):
        raise ValueError(f"{len(data)} bytes are not {count} texts, each behind its size in 4 bytes")
    array = pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(texts))
    array.validate(full=True)  # raises ValueError unless they are UTF-8
    return array


@njit_uncounted
def join_texts(data: Any, ends: Any, texts: Any) -> bool:
    """Copies the texts in ``data`` to ``texts``, and their ends to ``ends`` from 1 on. False if they are damaged."""
    place, end = 0, 0
    for number in range(1, len(ends)):
        if place + 4 > len(data):
            return False
        size: Any = 0
        for byte in range(4):
            size |= np.int64(data[place + byte]) << (8 * byte)
        place += 4
        if place + size > len(data):
            return False
        for byte in range(size):
            texts[end + byte] = data[place + byte]
        place += size
        end += size
        ends[number] = end
    return place == len(data)


def _column(column: LogColumn, values: pa.Array, shape: Sequence[int], lengths: pa.Array | None) -> pa.Array:
    """The ``values`` of a tensor of ``shape``, a value or a list for each row. Raises RequestError.

    ``lengths``: the number of elements of each row of a list column.
    """
    is_text = pa.types.is_string(values.type)  # a row's text is its whole list, as in the log
    if lengths is not None:
        sizes = _sizes(lengths)
        if sizes is None or sizes.sum() != len(values):
            rule = f"{column.name}{LENGTHS} must be whole numbers that add up to its {len(values)} elements"
            raise RequestError(422, rule)
    elif column.separator is not None and len(shape) == 2 and (shape[1] != 1 or not is_text):
        sizes = np.full(shape[0], shape[1])
    elif column.separator is not None and not is_text:
        rule = f"give {column.name}{LENGTHS}, the number of elements of each row, or shape [rows, elements]"
        raise RequestError(422, f"{column.name} holds lists: {rule}")
    elif [*shape[1:]] in ([], [1]):
        return values
    else:
        raise RequestError(422, f"{column.name}: shape must be [rows] or [rows, 1], got {[*shape]}")
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return pa.ListArray.from_arrays(array_of(ends), values)


def _sizes(lengths: pa.Array) -> NDArray[np.int64] | None:
    """``lengths`` as numbers; None unless all are whole, not negative and not missing."""
    if not pa.types.is_integer(lengths.type) or lengths.null_count:
        return None
    sizes = lengths.to_numpy(zero_copy_only=False)
    return sizes.astype(np.int64) if not len(sizes) or 0 <= sizes.min() <= sizes.max() < 1 << 31 else None
