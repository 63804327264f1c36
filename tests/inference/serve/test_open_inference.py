"""The Open Inference Protocol, by the real client: raw columns as named tensors have the scores of the same rows as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from dlrm_app.inference.serve.open_inference import HEADER_BYTES, read_inference, refuse_other_outputs
from dlrm_app.inference.serve.request import JsonRows, RequestError, ScoringRequest
from dlrm_app.inference.serve.scoring import ServedExport, open_served
from dlrm_app.logs.spec import LogColumn, Spec
from tests.inference.serve.running import Client, running
from tests.inference.serve.test_server import json_rows

NAME, ROWS = "shop-clicks", 40
SPEC = Spec(
    "of a test",
    ",",
    None,
    True,
    (
        LogColumn("clicked", "label"),
        LogColumn("price", "dense", "float"),
        LogColumn("user", "sparse", "string"),
        LogColumn("items", "sparse", "string", "|"),
        LogColumn("text", "vector", size=2, separator=" "),
    ),
)
COLUMNS = JsonRows(SPEC)


@pytest.fixture(scope="module")
def served(shop: Path) -> ServedExport:
    return open_served(shop / "export")


@pytest.fixture(scope="module")
def port(shop: Path) -> Iterator[int]:
    with running(f"model={shop}/export", f"name={NAME}", "limits.rows=100") as (_, port):
        yield port


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"127.0.0.1:{port}") as client:
        yield client


def texts(values: Sequence[object]) -> Any:
    """A tensor of texts; what is missing is empty."""
    return np.array(["" if value is None else str(value) for value in values], object)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of the shop's rows as tensors of their own types."""
    lists = [row.get("last_items") or [] for row in rows]
    return {
        "hour": texts([row.get("hour") for row in rows]),
        "price": np.array([row.get("price") or np.nan for row in rows], np.float64),
        "user": texts([row.get("user") for row in rows]),
        "last_items": texts([item for each in lists for item in each]),
        "last_items:lengths": np.array([*map(len, lists)], np.int64),
        "item": texts([row.get("item") for row in rows]),
        "shown_at": texts([row.get("shown_at") for row in rows]),
    }


def inputs_of(columns: Mapping[str, Any], is_binary: bool = True) -> list[InferInput]:
    inputs = []
    for name, values in columns.items():
        inputs.append(InferInput(name, [*values.shape], np_to_triton_dtype(values.dtype)))
        inputs[-1].set_data_from_numpy(values, is_binary)
    return inputs


def scores_of(served: ServedExport, rows: Sequence[dict[str, object]]) -> list[float]:
    (answer,) = served.score([ScoringRequest([*rows])])
    assert isinstance(answer, dict)
    return answer["click"]


@pytest.mark.slow
@pytest.mark.parametrize("is_binary", [True, False])
def test_tensors_have_the_scores_of_their_rows(
    client: InferenceServerClient, served: ServedExport, is_binary: bool
) -> None:
    """As binary data, the client's default, and as JSON; any column may come as texts, and lists as the log's texts."""
    rows = json_rows()[:ROWS]
    columns = columns_of(rows)
    plain = {**columns, "price": texts([row.get("price") for row in rows])}
    plain["last_items"] = texts(["|".join(row.get("last_items") or []) for row in rows]).reshape(-1, 1)
    del plain["last_items:lengths"]
    for tensors in (columns, plain):
        inputs = inputs_of(tensors, is_binary)
        outputs = None if is_binary else [InferRequestedOutput("score", binary_data=False)]
        result = client.infer(NAME, inputs, outputs=outputs, request_id="r1")
        found, expected = result.as_numpy("score"), scores_of(served, rows)
        assert (found.dtype, found.shape) == (np.float32, (ROWS,))
        assert found.tolist() == pytest.approx(expected, abs=1e-6)
        answer = result.get_response()
        assert (answer["model_name"], answer["model_version"], answer["id"]) == (NAME, served.identity, "r1")


@pytest.mark.slow
def test_the_client_finds_what_is_served(client: InferenceServerClient, served: ServedExport) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    for version in ("", served.identity):
        assert client.is_model_ready(NAME, version)
        about = client.get_model_metadata(NAME, version)
        assert about["versions"] == [served.identity]
        described = {each["name"]: (each["datatype"], each["shape"]) for each in about["inputs"]}
        assert described == {
            "hour": ("INT64", [-1]),
            "price": ("FP32", [-1]),
            "user": ("BYTES", [-1]),
            "last_items": ("BYTES", [-1]),
            "last_items:lengths": ("INT64", [-1]),
            "item": ("BYTES", [-1]),
            "shown_at": ("BYTES", [-1]),
        }
        assert about["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1]}]
    assert not client.is_model_ready("other")
    for name, version in (("other", ""), (NAME, "1")):
        with pytest.raises(InferenceServerException, match=rf"it is {NAME}, version {served.identity}"):
            client.infer(name, inputs_of({"user": texts(["u1"])}), version)


@pytest.mark.slow
def test_refusals_reach_the_client(client: InferenceServerClient, port: int) -> None:
    """With the status and the words of other requests; they are counted."""
    for columns, outputs, status, reason in (
        ({"price": texts(["1", "cheap"])}, None, "422", "row 1: price is 'cheap'"),
        ({"colour": texts(["red"])}, None, "422", "'colour' is not a column of the model"),
        ({"user": texts(["u1"] * 101)}, None, "413", "limits.rows=100"),
        ({"user": texts([])}, None, "422", "this one has 0"),
        ({"user": texts(["u1"]), "item": texts(["i1", "i2"])}, None, "422", "different numbers of rows: user 1, item 2"),
        ({"user": texts(["u1"])}, ["order"], "422", "'order' is not an output: they are score"),
    ):  # fmt: skip
        wanted = [InferRequestedOutput(name) for name in outputs] if outputs else None
        with pytest.raises(InferenceServerException) as caught:
            client.infer(NAME, inputs_of(columns), outputs=wanted)
        assert caught.value.status() == status
        assert reason in caught.value.message()
    with pytest.raises(InferenceServerException, match="the body is compressed"):
        client.infer(NAME, inputs_of({"user": texts(["u1"])}), request_compression_algorithm="gzip")
    page = Client(port).ask("GET", "/metrics")[1]
    assert 'dlrm_requests_total{status="413"} 1.0' in page


def tensor(name: str, data: Any, kind: str = "BYTES", shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": [len(data)] if shape is None else shape, "data": data}


def read(*tensors: dict[str, Any]) -> dict[str, list[Any]]:
    """The rows of a request in JSON, by column."""
    body = json.dumps({"inputs": tensors}).encode()
    return read_inference(body, None, 10, COLUMNS)[1].table.to_pydict()


def test_lists_come_with_their_lengths_or_as_rows() -> None:
    flat = tensor("items", ["a", "b", "", "c"])
    nested = tensor("items", [["a", "b"], ["", "c"]], shape=[2, 2])
    lengths = tensor("items:lengths", [3, 0, 1], "INT32")
    assert read(flat, lengths)["items"] == [["a", "b", ""], [], ["c"]]
    assert read(nested)["items"] == [["a", "b"], ["", "c"]]
    assert read(tensor("items", ["a|b", ""]))["items"] == ["a|b", ""]
    assert read(tensor("text", [1, 2, 3, 4], "FP32", [2, 2]))["text"] == [[1, 2], [3, 4]]
    assert read(tensor("clicked", [True, False, True], "BOOL"), tensor("user", ["u1", None])) == {
        "user": ["u1", None],
        **{name: [None, None] for name in ("price", "items", "text")},
    }


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([tensor("items", ["a"]), tensor("items:lengths", [2], "INT64")], "add up to its 1 elements"),
        ([tensor("items", ["a"]), tensor("items:lengths", [2, -1], "INT64")], "add up to its 1 elements"),
        ([tensor("items", ["a"]), tensor("items:lengths", ["1"])], "add up to its 1 elements"),
        ([tensor("items", [1, 2], "INT64")], "give items:lengths, the number of elements of each row"),
        ([tensor("user", ["a", "b"], shape=[1, 2])], "user: shape must be [rows] or [rows, 1]"),
        ([tensor("user", ["a"], shape=[])], "input user: shape must be [rows] or [rows, elements]"),
        ([tensor("user", ["a"], shape=[1, 1, 1])], "input user: shape must be [rows] or [rows, elements]"),
        ([tensor("user", ["a"], shape=[2])], "must have as many values as there are, 1"),
        ([tensor("user", [], shape=[-1])], "input user: shape must be [rows] or [rows, elements]"),
        ([tensor("user", [], shape=[1 << 40] * 9)], "input user: shape must be [rows] or [rows, elements]"),
        ([tensor("items", [], "INT8", [1 << 30, 0])], "this one has 1,073,741,824"),
        ([tensor("items", [["a"], ["b", "c", "d"]], shape=[2, 2])], "must be lists of 2 values"),
        ([tensor("user", ["ab", ["c"]], shape=[3])], "input user"),
        ([tensor("user", [["a"], {"b": 1}], shape=[2])], "input user"),
        ([tensor("price", [1, 1.5], "INT64")], "must be whole numbers"),
        (
            [tensor("user", ["a"]), tensor("items:lengths", [1], "INT64")],
            "lengths of a list column that is given",
        ),
        ([tensor("user", ["a"], "TEXT")], "datatype must be one of BOOL, INT8"),
        ([tensor("price", [[[1]], {}], "FP32")], "input price"),
        ([tensor("price", [10**400], "FP32")], "input price"),
        ([tensor("user", ["\ud800"])], "input user"),
        ([tensor("user:lengths", [1], "INT64")], "'user:lengths' is not a column of the model"),
        ([tensor("user", ["a"]), tensor("user", ["b"])], "'user' is given twice"),
        ([{"name": "user"}], "the body is not an inference request"),
        ([{**tensor("user", ["a"]), "parameters": {"binary_data_size": 7}}], "inputs have 7 bytes behind"),
        ([{**tensor("user", ["a"]), "parameters": {"binary_data_size": "7"}}], "parameters.binary_data_size"),
        ([{**tensor("user", ["a"]), "parameters": {"binary_data_size": -7}}], "parameters.binary_data_size"),
    ],
)
def test_other_tensors_are_refused(tensors: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(*tensors)
    assert reason in caught.value.reason


def test_binary_texts_that_are_not_utf_8_are_refused() -> None:
    for name in ("user", "items"):
        text = {"name": name, "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
        header = json.dumps({"inputs": [text]}).encode()
        with pytest.raises(RequestError, match=f"input {name}: Invalid UTF8"):
            read_inference(header + b"\1\0\0\0\xff", str(len(header)), 10, COLUMNS)


def test_an_output_is_given_once() -> None:
    """Otherwise a short request could ask for an answer of any length."""
    asked = {"inputs": [tensor("user", ["a"])], "outputs": [{"name": "score"}] * 1000}
    inference, _ = read_inference(json.dumps(asked).encode(), None, 10, COLUMNS)
    with pytest.raises(RequestError, match="'score' is given twice"):
        refuse_other_outputs(inference, ["score"])


def binary_body() -> tuple[bytes, str]:
    columns = {
        "price": np.array([1.5, np.nan], np.float32),
        "user": texts(["u1", "ü"]),
        "items": texts(["a", "b", ""]),
        "items:lengths": np.array([1, 2]),
    }
    body, size = InferenceServerClient.generate_request_body(inputs_of(columns))
    return body, str(size)


def test_binary_tensors_are_read() -> None:
    """Behind a JSON of any length, so that numbers may lie at any address."""
    body, size = binary_body()
    for blanks in range(8):
        padded = b" " * blanks + body
        rows = read_inference(padded, str(int(size) + blanks), 10, COLUMNS)[1].table.to_pydict()
        assert rows["user"] == ["u1", "ü"]
        assert rows["items"] == [["a"], ["b", ""]]
        assert rows["price"] == [1.5, pytest.approx(np.nan, nan_ok=True)]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_body_is_read_or_refused(data: st.DataObject) -> None:
    """Never with another error."""
    body, size = binary_body()
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        start = 0 if data.draw(st.booleans()) else int(size)
        damaged[data.draw(st.integers(start, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body))) if data.draw(st.booleans()) else len(body)
    header = data.draw(st.sampled_from([size, None, "", "-1", "9" * 30, str(len(body)), "²"]))
    with suppress(RequestError):
        read_inference(bytes(damaged[:cut]), header, 10, COLUMNS)


def test_the_header_is_named() -> None:
    with pytest.raises(RequestError, match=HEADER_BYTES):
        read_inference(b"{}", "3", 10, COLUMNS)
