"""Streams of Arrow as bodies and answers of requests, for clients that have tables."""

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dlrm_app.dataset.arrow import array_of
from dlrm_app.inference.serve.request import RequestError, refuse_size, refuse_twice
from dlrm_app.logs.arrow_types import with_plain_types
from dlrm_app.logs.parquet_columns import type_faults
from dlrm_app.logs.spec import LogColumn, Spec

ARROW = "application/vnd.apache.arrow.stream"
"""The media type of streams."""
_MAY_BE_COMPRESSED = {"record batch": 0, "dictionary": 1}
"""Type of message → 1 if its header holds the batch, 0 if it is the batch."""
_HEADER, _BATCH, _COMPRESSION = 2, 1, 3
"""Numbers of fields: a message's header, a dictionary's batch, a batch's compression (format/Message.fbs of Arrow)."""


@dataclass(frozen=True)
class TableRequest:
    """The rows of a request that are a table with the columns of the model."""

    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)


def read_stream(body: bytes, max_rows: int, spec: Spec, unread: Collection[str]) -> TableRequest:
    """The rows of a stream of Arrow, by the rules of Parquet; columns that it lacks are missing, ``unread`` ones are
    left out.

    Raises RequestError.
    """
    try:
        refuse_compressed(body)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        refuse_size(len(table), max_rows)
        table.validate(full=True)
        table = with_plain_types(table)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(400, f"the body is not a stream of Arrow: {str(error)[:200]}") from error
    refuse_twice(table.column_names)
    return request_of_table(table, spec, unread)


def request_of_table(table: pa.Table, spec: Spec, unread: Collection[str]) -> TableRequest:
    """The rows of ``table``, whose names differ, by the rules of Parquet. Raises RequestError."""
    columns = {column.name: column for column in spec.columns}
    table = table.drop_columns([name for name in table.column_names if name in unread])
    if unknown := [name for name in table.column_names if name not in columns]:
        raise RequestError(422, f"{unknown[0]!r} is not a column of the model")
    ordered = tuple(columns.get(name, LogColumn(name, "ignore")) for name in table.column_names)
    if faults := type_faults("the table", table.schema, table.column_names, replace(spec, order=ordered)):
        raise RequestError(422, str(faults[0]))
    for name in columns:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table)))
    # copied, because compiled functions would be compiled again for read-only memory, such as the body's
    return TableRequest(table.take(array_of(np.arange(len(table)))).combine_chunks())


def refuse_compressed(body: bytes) -> None:
    """Raises RequestError for a stream whose buffers are compressed: a short one can fill all memory."""
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type not in _MAY_BE_COMPRESSED:
            continue
        data = message.metadata.to_pybytes()
        batch = _field(data, struct.unpack_from("<I", data)[0], _HEADER)
        if _MAY_BE_COMPRESSED[message.type] and batch:
            batch = _field(data, batch, _BATCH)
        if batch and _field(data, batch, _COMPRESSION):
            raise RequestError(415, "the stream is compressed: send it without compression")


def _field(data: bytes, table: int, number: int) -> int:
    """The place of the table in field ``number`` of the flatbuffer's table at ``table``; 0 if it is absent."""
    fields: int = table - struct.unpack_from("<i", data, table)[0]
    size, entry = struct.unpack_from("<H", data, fields)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", data, fields + entry)[0] if entry < size else 0
    place = table + offset
    return place + struct.unpack_from("<I", data, place)[0] if offset else 0


def named_scores(scores: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """``score``, and ``score_LABEL`` of other labels than the main one, which is the first of ``scores``."""
    names = ["score", *(f"score_{label}" for label in [*scores][1:])]
    return dict(zip(names, scores.values(), strict=True))


def write_stream(scores: Mapping[str, Sequence[float]]) -> bytes:
    """The ``named_scores`` as a stream of Arrow, in float32."""
    table = pa.table({name: pa.array(each, pa.float32()) for name, each in named_scores(scores).items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written
