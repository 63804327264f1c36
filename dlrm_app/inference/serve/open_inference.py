"""KServe's Open Inference Protocol, version 2: raw columns as named tensors, in JSON or behind it in binary form.

https://github.com/kserve/open-inference-protocol, with the extension binary_tensor_data of Triton, which is the
default of its clients.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from dlrm_app import __version__
from dlrm_app.inference.serve.arrow_bodies import TableRequest, named_scores
from dlrm_app.inference.serve.following import Follower
from dlrm_app.inference.serve.request import JsonRows, RequestError, object_of, refuse_twice
from dlrm_app.inference.serve.scoring import JSON, RequestedRows, ScoredRequest, ServedExport
from dlrm_app.inference.serve.tensors import LENGTHS, TEXTS, Tensor, read_tensors, texts_of
from dlrm_app.logs.spec import LogColumn
from dlrm_app.text import json_text

HEADER_BYTES = "inference-header-content-length"
"""The header with the length of the JSON that binary tensors follow."""
_NUMBERS = {"integer": "INT64", "float": "FP32", "score": "FP32", None: "FP32"}
"""Kind of a column → the data type of its values, where it is not BYTES. Weights and vectors have no kind."""
Ask = Callable[[Request, Callable[[bytes, ServedExport], RequestedRows]], Awaitable[ScoredRequest]]
"""(request, reader of its body) → its scores. Raises RequestError."""
Endpoint = Callable[[Request], Awaitable[Response]]


class _OutputForm(msgspec.Struct):
    binary_data: bool | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputForm = msgspec.field(default_factory=_OutputForm)


class _Form(msgspec.Struct):
    binary_data_output: bool = False


class Inference(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[Tensor]
    outputs: list[_Output] | None = None
    id: str = ""
    parameters: _Form = msgspec.field(default_factory=_Form)


class OpenInference:
    """The endpoints of the model ``name``. ``ask`` scores, ``is_ready`` tells whether requests are taken."""

    def __init__(
        self, name: str, follower: Follower, max_rows: int, ask: Ask, is_ready: Callable[[], bool]
    ) -> None:
        self._name, self._follower, self._max_rows = name, follower, max_rows
        self._ask, self._is_ready = ask, is_ready
        texts_of(np.zeros(4, np.uint8), 1)  # compiled before the first request
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
        outputs = [{"name": name, "datatype": "FP32", "shape": [-1]} for name in _output_names(export)]
        about = {"name": self._name, "versions": [export.identity], "platform": "dlrm-app"}
        return _json({**about, "inputs": inputs, "outputs": outputs})

    async def _infer(self, request: Request) -> Response:
        asked: list[Inference] = []

        def read(body: bytes, export: ServedExport) -> RequestedRows:
            self._refuse_other(request, export.identity)
            inference, rows = read_inference(
                body, request.headers.get(HEADER_BYTES), self._max_rows, export.requests
            )
            refuse_other_outputs(inference, _output_names(export))
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


def _output_names(export: ServedExport) -> list[str]:
    return [*named_scores(dict.fromkeys(export.labels, ()))]


def refuse_other_outputs(inference: Inference, names: Sequence[str]) -> None:
    """Raises RequestError for an output that is not one of ``names``, or is asked for twice: an answer of many would
    be long.
    """
    wanted = [each.name for each in inference.outputs or []]
    refuse_twice(wanted)
    if unknown := [name for name in wanted if name not in names]:
        raise RequestError(422, f"{unknown[0][:60]!r} is not an output: they are {', '.join(names)}")


def _described(column: LogColumn) -> list[dict[str, object]]:
    """The inputs of ``column``."""
    kind = _NUMBERS.get(column.kind, TEXTS)
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
    return inference, read_tensors(inference.inputs, tensors, max_rows, columns)


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
    sizes = [each.parameters.binary_data_size for each in inference.inputs]
    ends = [*accumulate((size or 0 for size in sizes), initial=end)]
    if ends[-1] != len(body):
        raise RequestError(
            400, f"inputs have {ends[-1] - end} bytes behind the JSON, the body has {len(body) - end}"
        )
    data = np.frombuffer(body, np.uint8)
    parts = zip(sizes, ends[:-1], ends[1:], strict=True)
    return inference, [None if size is None else data[start:stop] for size, start, stop in parts]


def _answer(name: str, found: ScoredRequest, asked: Inference) -> Response:
    """The scores that are ``asked`` for, in JSON or behind it."""
    scores = named_scores(found.scores)
    outputs, parts = [], []
    for each in asked.outputs or [_Output(name) for name in scores]:
        values = np.asarray(scores[each.name], np.float32)
        output: dict[str, object] = {"name": each.name, "datatype": "FP32", "shape": [len(values)]}
        is_binary = each.parameters.binary_data
        if asked.parameters.binary_data_output if is_binary is None else is_binary:
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
