"""KServe's Open Inference Protocol, version 2: raw columns as named tensors, in JSON or behind it in binary form.

https://github.com/kserve/open-inference-protocol, with the extension binary_tensor_data of Triton, which is the default of its clients.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate, chain
from math import prod
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from dlrm_app import __version__
from dlrm_app.dataset.arrow import array_of
from dlrm_app.inference.serve.arrow_bodies import TableRequest, named_scores, request_of_table
from dlrm_app.inference.serve.following import Follower
from dlrm_app.inference.serve.request import JsonRows, RequestError, object_of, refuse_size, refuse_twice
from dlrm_app.inference.serve.scoring import JSON, RequestedRows, ScoredRequest, ServedExport
from dlrm_app.kernels.compiled import njit_uncounted
from dlrm_app.logs.spec import LogColumn
from dlrm_app.text import json_text

HEADER_BYTES = "inference-header-content-length"
"""The header with the length of the JSON that binary tensors follow."""
LENGTHS = ":lengths"
"""Behind the name of a list column: the input with the number of elements of each row."""
_TEXTS = "BYTES"
_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "BOOL": ("?", pa.bool_()),
    **{f"INT{8 * size}": (f"<i{size}", getattr(pa, f"int{8 * size}")()) for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": (f"<u{size}", getattr(pa, f"uint{8 * size}")()) for size in (1, 2, 4, 8)},
    "FP32": ("<f4", pa.float32()),
    "FP64": ("<f8", pa.float64()),
    _TEXTS: ("", pa.string()),
}
"""Data type of the protocol → (NumPy's, Arrow's)."""
_NUMBERS = {"integer": "INT64", "float": "FP32", "score": "FP32", None: "FP32"}
"""Kind of a column → the data type of its values, where it is not BYTES. Weights and vectors have no kind."""
_SIZE_BYTES = 4
"""Bytes of the size in front of each text."""

Ask = Callable[[Request, Callable[[bytes, ServedExport], RequestedRows]], Awaitable[ScoredRequest]]
"""(request, reader of its body) → its scores. Raises RequestError."""
Endpoint = Callable[[Request], Awaitable[Response]]


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class Inference(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[_Input]
    outputs: list[_Output] | None = None
    id: str = ""
    parameters: dict[str, Any] = {}


class OpenInference:
    """The endpoints of the model ``name``. ``ask`` scores, ``is_ready`` tells whether requests are taken."""

    def __init__(
        self, name: str, follower: Follower, max_rows: int, ask: Ask, is_ready: Callable[[], bool]
    ) -> None:
        self._name, self._follower, self._max_rows = name, follower, max_rows
        self._ask, self._is_ready = ask, is_ready
        _texts(np.frombuffer(bytes(_SIZE_BYTES), np.uint8), 1)  # compiled before the first request
        model = "/v2/models/{name}"
        versions = (model, f"{model}/versions/{{version}}")
        self.answers: dict[str, Endpoint] = {f"{path}/infer": self._infer for path in versions}
        """Path → the endpoint that scores."""
        self.pages: dict[str, Endpoint] = {
            "/v2": self._server,
            "/v2/health/live": self._live,
            "/v2/health/ready": self._ready,
            **dict.fromkeys(versions, self._model),
            **{f"{path}/ready": self._model_ready for path in versions},
        }
        """Path → the endpoint that describes."""

    async def _server(self, _: Request) -> Response:
        return _json({"name": "dlrm-serve", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def _live(self, _: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, _: Request) -> Response:
        return _json({"ready": self._is_ready()}, 200 if self._is_ready() else 503)

    async def _model_ready(self, request: Request) -> Response:
        self._refuse_other(request, self._follower.serving.export.identity)
        return _json({"name": self._name, "ready": self._is_ready()}, 200 if self._is_ready() else 503)

    async def _model(self, request: Request) -> Response:
        export = self._follower.serving.export
        self._refuse_other(request, export.identity)
        inputs = [each for column in export.requests.spec.columns for each in _described(column)]
        outputs = [
            {"name": name, "datatype": "FP32", "shape": [-1]}
            for name in named_scores(dict.fromkeys(export.labels, ()))
        ]
        about = {"name": self._name, "versions": [export.identity], "platform": "dlrm-app"}
        return _json({**about, "inputs": inputs, "outputs": outputs})

    async def _infer(self, request: Request) -> Response:
        asked: list[Inference] = []

        def read(body: bytes, export: ServedExport) -> RequestedRows:
            self._refuse_other(request, export.identity)
            inference, rows = read_inference(
                body, request.headers.get(HEADER_BYTES), self._max_rows, export.requests
            )
            asked.append(inference)
            return rows

        found = await self._ask(request, read)
        self._refuse_other(request, found.identity)  # another export may have taken over
        return _answer(self._name, found, asked[0])

    def _refuse_other(self, request: Request, identity: str) -> None:
        """Raises RequestError if another model than this one is asked for, or another version than ``identity``."""
        name, version = request.path_params["name"], request.path_params.get("version", identity)
        if (name, version) != (self._name, identity):
            rule = f"is not served here: it is {self._name}, version {identity}"
            raise RequestError(404, f"model {name[:60]}, version {version[:60]}, {rule}")


def _described(column: LogColumn) -> list[dict[str, object]]:
    """The inputs of ``column``."""
    kind = _NUMBERS.get(column.kind, _TEXTS)
    shape = [-1] if column.size is None else [-1, column.size]
    inputs: list[dict[str, object]] = [{"name": column.name, "datatype": kind, "shape": shape}]
    if column.separator is not None and column.size is None:
        inputs.append({"name": column.name + LENGTHS, "datatype": "INT64", "shape": [-1]})
    return inputs


def read_inference(
    body: bytes, header: str | None, max_rows: int, columns: JsonRows
) -> tuple[Inference, TableRequest]:
    """(the JSON of a request, its rows). ``header``: the value of HEADER_BYTES. Raises RequestError."""
    inference, tensors = _split(body, header)
    return inference, _rows(inference.inputs, tensors, max_rows, columns)


def _split(body: bytes, header: str | None) -> tuple[Inference, list[NDArray[np.uint8] | None]]:
    """(the JSON of a request, the binary form of its inputs that have one). Raises RequestError."""
    rule = f"the header {HEADER_BYTES} must be the length of the JSON, at most {len(body)} here"
    if header is not None and not (header.isdecimal() and len(header) < 20 and int(header) <= len(body)):
        raise RequestError(400, rule)
    end = len(body) if header is None else int(header)
    try:
        value = json.loads(body[:end], object_pairs_hook=object_of)  # takes NaN, as clients write it
        inference = msgspec.convert(value, Inference)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:200] or type(error).__name__
        raise RequestError(400, f"the body is not an inference request: {reason}") from error
    sizes = [each.parameters.get("binary_data_size") for each in inference.inputs]
    if not all(size is None or (type(size) is int and size >= 0) for size in sizes):
        raise RequestError(400, "binary_data_size must be a number of bytes")
    ends = [*accumulate((size or 0 for size in sizes), initial=end)]
    if ends[-1] != len(body):
        raise RequestError(
            400, f"inputs have {ends[-1] - end} bytes behind the JSON, the body has {len(body) - end}"
        )
    data = np.frombuffer(body, np.uint8)
    parts = zip(sizes, ends[:-1], ends[1:], strict=True)
    return inference, [None if size is None else data[start:stop] for size, start, stop in parts]


def _rows(
    inputs: Sequence[_Input],
    tensors: Sequence[NDArray[np.uint8] | None],
    max_rows: int,
    described: JsonRows,
) -> TableRequest:
    """The rows of ``inputs``. Raises RequestError."""
    refuse_twice([each.name for each in inputs])
    columns = {column.name: column for column in described.spec.columns}
    lists = {column.name for column in columns.values() if column.separator is not None}
    arrays = {
        each.name: _array(each, data)
        for each, data in zip(inputs, tensors, strict=True)
        if each.name.removesuffix(LENGTHS) not in described.unread
    }
    lengths = {name: arrays.pop(name + LENGTHS) for name in lists if name + LENGTHS in arrays}
    for each in inputs:
        if each.name in arrays and each.name in columns:
            column, given = columns[each.name], lengths.get(each.name)
            arrays[each.name] = _column(column, arrays[each.name], each.shape, given)
    if len(sizes := {len(array) for array in arrays.values()}) > 1:
        shown = ", ".join(f"{name[:60]} {len(array)}" for name, array in arrays.items())
        raise RequestError(422, f"inputs have different numbers of rows: {shown}")
    refuse_size(max(sizes, default=0), max_rows)
    return request_of_table(pa.table(arrays), described.spec, described.unread)


def _array(tensor: _Input, data: NDArray[np.uint8] | None) -> pa.Array:
    """The values of an input, in one dimension. Raises RequestError."""
    if tensor.datatype not in _TYPES:
        raise RequestError(422, f"input {tensor.name[:60]}: datatype must be one of {', '.join(_TYPES)}")
    numpy_type, arrow_type = _TYPES[tensor.datatype]
    count = prod(tensor.shape) if all(size >= 0 for size in tensor.shape) else -1
    try:
        if data is None:
            values = tensor.data or []
            while values and any(isinstance(value, list) for value in values):
                values = [*chain.from_iterable(values)]
            array = pa.array(values, arrow_type)
        elif tensor.datatype == _TEXTS:
            array = _texts(data, count)
        else:
            array = pa.array(np.frombuffer(data, numpy_type).copy())  # aligned
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RequestError(422, f"input {tensor.name[:60]}: {reason}") from error
    if len(array) != count:
        reason = f"shape {tensor.shape} must have as many values as there are, {len(array)}"
        raise RequestError(422, f"input {tensor.name[:60]}: {reason}")
    return array


def _texts(data: NDArray[np.uint8], count: int) -> pa.Array:
    """The ``count`` texts in ``data``, each behind its size. Raises ValueError for damaged ones."""
    if not 0 <= _SIZE_BYTES * count <= len(data) < 1 << 31:
        raise ValueError(f"{len(data)} bytes do not hold {count} texts, each behind its size in 4 bytes")
    ends, texts = np.zeros(count + 1, np.int32), np.empty(len(data) - _SIZE_BYTES * count, np.uint8)
    if not join_texts(data, ends, texts):
        raise ValueError(f"{len(data)} bytes are not {count} texts, each behind its size in 4 bytes")
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(texts))


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
    elif [*shape[1:]] in ([], [1]) and shape:
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


def _answer(name: str, found: ScoredRequest, asked: Inference) -> Response:
    """The scores that are ``asked`` for, in JSON or behind it."""
    scores, is_binary = named_scores(found.scores), asked.parameters.get("binary_data_output", False)
    wanted = asked.outputs or [_Output(each) for each in scores]
    if unknown := [each.name for each in wanted if each.name not in scores]:
        raise RequestError(422, f"{unknown[0][:60]!r} is not an output: they are {', '.join(scores)}")
    outputs, parts = [], []
    for each in wanted:
        values = np.asarray(scores[each.name], np.float32)
        output: dict[str, object] = {"name": each.name, "datatype": "FP32", "shape": [len(values)]}
        if each.parameters.get("binary_data", is_binary):
            parts.append(values.astype("<f4").tobytes())
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = scores[each.name]
        outputs.append(output)
    about = {"model_name": name, "model_version": found.identity, **({"id": asked.id} if asked.id else {})}
    header, served_by = json_text({**about, "outputs": outputs}).encode(), {"x-model": found.model}
    if not parts:
        return Response(header, 200, served_by, JSON)
    headers = {**served_by, HEADER_BYTES: str(len(header))}
    return Response(b"".join([header, *parts]), 200, headers, "application/octet-stream")


def _json(value: Mapping[str, object], status: int = 200) -> Response:
    return Response(json_text(value), status, media_type=JSON)
