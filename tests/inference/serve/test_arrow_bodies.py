"""Tables as streams of Arrow: the scores of the same rows as JSON, and streams that are refused."""

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrm_app.inference.serve.arrow_bodies import ARROW, read_stream, write_stream
from dlrm_app.inference.serve.request import RequestError, ScoringRequest
from dlrm_app.inference.serve.scoring import ServedExport, open_served
from dlrm_app.logs.spec import LogColumn, Spec
from tests.inference.serve.test_server import json_rows

SPEC = Spec(
    "of a test",
    ",",
    None,
    True,
    (LogColumn("price", "dense", "float"), LogColumn("user", "sparse", "string")),
)


@pytest.fixture(scope="module")
def served(shop: Path) -> ServedExport:
    return open_served(shop / "export")


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=100)
    return sink.getvalue().to_pybytes()


def test_a_table_has_the_scores_of_its_rows(served: ServedExport) -> None:
    """To the bit, beside other requests; columns that the table lacks are missing in all rows."""
    rows = json_rows()
    table = pa.Table.from_pylist(rows)
    for names in (table.column_names, ["user", "last_items", "clicked"]):
        asked = served.readers[ARROW](stream(table.select(names)), 512)
        plain = ScoringRequest([{name: row.get(name) for name in names} for row in rows])
        answers = served.score([ScoringRequest(rows[:3]), asked, ScoringRequest([{}], {"user": "u1"})])
        assert answers[1] == served.score([plain])[0]


def test_an_answer_has_a_column_for_each_label() -> None:
    table = pa.ipc.open_stream(write_stream({"click": [0.25, 0.5], "order": [0.125, 1.0]})).read_all()
    assert table.to_pydict() == {"score": [0.25, 0.5], "score_order": [0.125, 1.0]}
    assert {*table.schema.types} == {pa.float32()}


def refused(body: bytes) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        read_stream(body, 200, SPEC, {"clicked"})
    return caught.value.status, caught.value.reason


def test_other_streams_are_refused() -> None:
    table = pa.table({"price": [1.0] * 150, "user": ["u1"] * 150})
    texts = table.set_column(1, "user", table["user"].dictionary_encode())
    for codec in ("lz4", "zstd"):
        for each in (table, texts):
            assert refused(stream(each, compression=codec))[0] == 415
    assert len(read_stream(stream(texts), 200, SPEC, ())) == 150
    assert refused(stream(table[:0]))[0] == 422
    assert refused(stream(pa.concat_tables([table] * 2)))[0] == 413
    assert refused(stream(pa.table([[1.0], [2.0]], ["price", "price"])))[0] == 400
    assert refused(stream(pa.table({"colour": [1]}))) == (422, "'colour' is not a column of the model")
    assert (
        "which a dense column of kind float cannot be read from"
        in refused(stream(pa.table({"price": [[1.0]]})))[1]
    )
    wild = stream(pa.table({"user": ["abc"]})).replace(
        struct.pack("<ii", 0, 3), struct.pack("<ii", 0, 1 << 20)
    )
    assert refused(wild)[0] == 400


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_stream_is_read_or_refused(data: st.DataObject) -> None:
    """Never with another error."""
    table = pa.table({"price": [1.0, None], "user": pa.array(["u1", "ü"]).dictionary_encode()})
    body = bytearray(stream(table))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    given = bytes(body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body)
    with suppress(RequestError):
        read_stream(given, 200, SPEC, ())
