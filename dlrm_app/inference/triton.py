"""An export as a model of NVIDIA's Triton Inference Server: config.pbtxt, and 1/model.py for its Python backend.

The export's folder is the model's folder, and the one around it the repository. An input is a column of the raw log, as text;
``score`` is the probability. The schema of config.pbtxt: github.com/triton-inference-server/common, protobuf/model_config.proto.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.inference.raw_text import raw_spec
from dlrm_app.inference.serve.answers import RequestError
from dlrm_app.inference.serve.served_export import open_served
from dlrm_app.preprocess.read.spec import Column

CONFIG, CODE = "config.pbtxt", "1/model.py"
OUTPUT = "score"
MAX_BATCH_ROWS = 4096
_WAIT_US = 1000
_CODE = '''"""Scores raw rows by the export in the folder above; dlrm-app must be installed in the Python that Triton runs."""

import triton_python_backend_utils as backend

from dlrm_app.inference.triton import TritonModel


class TritonPythonModel:
    def initialize(self, args):
        self._model = TritonModel(args["model_repository"], backend)

    def execute(self, requests):
        return self._model.execute(requests)
'''


def write_triton(folder: Path, manifest: Manifest) -> None:
    """Writes what Triton looks for into the export at ``folder``. Raises DataError where the raw columns are not known."""
    (folder / CODE).parent.mkdir()
    (folder / CODE).write_text(_CODE, encoding="utf-8")
    (folder / CONFIG).write_text(config_text(_inputs(manifest)), encoding="utf-8")


def _inputs(manifest: Manifest) -> list[Column]:
    return [column for column in raw_spec(manifest).columns if column.role in ("dense", "sparse")]


def config_text(columns: Sequence[Column]) -> str:
    """The text of config.pbtxt for a model that reads ``columns``. Its user may change it."""
    inputs = ",\n".join(
        f"  {{ name: {json.dumps(column.name)} data_type: TYPE_STRING dims: [ 1 ] optional: true }}"
        for column in columns
    )
    return (
        f'backend: "python"\nmax_batch_size: {MAX_BATCH_ROWS}\ninput [\n{inputs}\n]\n'
        f"output [\n  {{ name: {json.dumps(OUTPUT)} data_type: TYPE_FP32 dims: [ 1 ] }}\n]\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: {_WAIT_US} }}\n"
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )


class TritonModel:
    """What model.py calls. ``backend`` is Triton's own module, which exists within its server alone."""

    def __init__(self, folder: str, backend: ModuleType) -> None:
        self._backend = backend
        self._served = open_served(Path(folder), MAX_BATCH_ROWS)
        self._columns = _inputs(self._served.export.encoding)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """A response to each of Triton's ``requests``, their rows scored together; bad rows are an invalid argument."""
        answers = self._served.score([self._rows(request) for request in requests])
        return [self._response(answer) for answer in answers]

    def _rows(self, request: Any) -> list[dict[str, object]]:
        tensors = {
            column.name: tensor.as_numpy().reshape(-1)
            for column in self._columns
            if (tensor := self._backend.get_input_tensor_by_name(request, column.name)) is not None
        }
        rows: list[dict[str, object]] = [{} for _ in range(max(map(len, tensors.values()), default=0))]
        for column in self._columns:
            for row, value in zip(rows, tensors.get(column.name, ()), strict=False):
                row[column.name] = _value(value, column)
        return rows

    def _response(self, answer: list[float] | RequestError) -> Any:
        backend = self._backend
        if isinstance(answer, RequestError):
            error = backend.TritonError(answer.reason, backend.TritonError.INVALID_ARG)
            return backend.InferenceResponse(output_tensors=[], error=error)
        scores: NDArray[np.float32] = np.array(answer, np.float32).reshape(-1, 1)
        return backend.InferenceResponse(output_tensors=[backend.Tensor(OUTPUT, scores)])


def _value(text: bytes | str, column: Column) -> object:
    """A field of the raw log: nothing where it is empty, and a list where the column holds lists."""
    decoded = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    if column.separator is None or not decoded:
        return decoded or None
    return decoded.split(column.separator)
