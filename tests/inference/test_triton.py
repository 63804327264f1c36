"""An export as a model of Triton's: its configuration parsed by Triton's own schema, its code run as the server runs it.

There is no Triton here: the module that it gives to a Python model is replaced by one of the same interface.
"""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format

from dlrm_app.config.compose import compose_config
from dlrm_app.config.export import ExportConfig
from dlrm_app.inference.exported_model import open_export
from tests.inference.conftest import export_here
from tests.inference.shop import HEADER, NUM_TEST, draw_rows


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def export(shop: Path) -> Path:
    export_here(f"checkpoint={shop}/run", "format=[torchscript,triton]", f"output={shop}/clicks")
    return shop / "clicks"


def test_the_configuration_is_one_of_tritons_schema(export: Path) -> None:
    files = importlib.metadata.files("tritonclient") or []
    (path,) = (file for file in files if str(file).endswith("grpc/model_config_pb2.py"))
    schema: Any = load("model_config_pb2", Path(str(path.locate())))
    config = text_format.Parse((export / "config.pbtxt").read_text(), schema.ModelConfig())
    assert config.backend == "python"
    assert [each.name for each in config.input] == ["hour", "price", "user", "last_items"]
    assert {(each.data_type, tuple(each.dims), each.optional) for each in config.input} == {
        (schema.TYPE_STRING, (1,), True)
    }
    assert [(each.name, each.data_type, list(each.dims)) for each in config.output] == [
        ("score", schema.TYPE_FP32, [1])
    ]
    assert config.max_batch_size == 4096
    assert config.HasField("dynamic_batching")
    assert config.instance_group[0].kind == schema.ModelInstanceGroup.KIND_CPU


class TritonError(Exception):
    INVALID_ARG = 3

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def make_backend() -> ModuleType:
    """What a Python model uses of triton_python_backend_utils."""
    backend: Any = ModuleType("triton_python_backend_utils")
    backend.get_input_tensor_by_name = lambda request, name: request.get(name)
    backend.Tensor = lambda name, values: SimpleNamespace(name=name, values=values)
    backend.TritonError = TritonError
    backend.InferenceResponse = lambda output_tensors, error=None: SimpleNamespace(
        tensors=output_tensors, error=error
    )
    return backend  # type: ignore[no-any-return]


def request_of(rows: list[list[Any]], columns: list[str]) -> dict[str, Any]:
    """The fields of ``rows`` as the raw log has them."""

    def tensor(column: str) -> Any:
        texts = [[str(row[HEADER.index(column)]).encode()] for row in rows]
        return SimpleNamespace(as_numpy=lambda: np.array(texts, np.object_))

    return {column: tensor(column) for column in columns}


def test_its_code_scores_as_the_dataset(
    export: Path, expected: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", make_backend())
    model = load("model", export / "1" / "model.py").TritonPythonModel()
    model.initialize({"model_repository": str(export), "model_version": "1"})
    rows, columns = draw_rows()[-NUM_TEST:], ["hour", "price", "user", "last_items"]
    bad = [[0, "noon", 1.0, 0, "u1", ""]]
    requests = [request_of(rows[:100], columns), request_of(bad, columns), request_of(rows[100:], columns)]
    first, refused, rest = model.execute([*requests])
    scores = np.concatenate([first.tensors[0].values, rest.tensors[0].values]).reshape(-1)
    np.testing.assert_allclose(scores, expected.column("score").to_numpy(), atol=1e-7)
    assert (first.error, refused.error.code) == (None, TritonError.INVALID_ARG)
    assert "hour is not a whole number" in str(refused.error)
    (without_user,) = model.execute([request_of(rows[:5], ["hour", "price", "last_items"])])
    (with_nobody,) = model.execute([request_of([[*row[:4], "", row[5]] for row in rows[:5]], columns)])
    assert without_user.tensors[0].values.tolist() == with_nobody.tensors[0].values.tolist()


def test_its_configuration_is_the_users_to_change_and_its_code_is_not(export: Path) -> None:
    config, code = export / "config.pbtxt", export / "1" / "model.py"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    open_export(export)
    text = code.read_text()
    code.write_text(text + "\n")
    with pytest.raises(Exception, match=r"1/model\.py has"):
        open_export(export)
    code.write_text(text)


def test_a_layout_alone_holds_no_model() -> None:
    config = compose_config("export", ExportConfig, ["checkpoint=run", "format=triton", "output=x"])
    assert any("holds no model itself" in problem for problem in config.problems())
