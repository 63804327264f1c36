"""The process that scores for the server: ``python -m dlrm_app.inference.serve.scoring_process FD``.

Each export has a process of its own, for torch keeps every compiled model that it ever loaded: the memory of one goes
with its process. FD is a socket to the server. Both sides send messages, a length and then the bytes:

    server   Order as JSON            once
    process  Served as JSON           once the export is verified and loaded, or why it is refused
    server   lines of rows, as text   any number of times
    process  their scores, float64, then what is wrong with some of them, as JSON; or why there are none

The process ends with the server's end of the socket, not by signals, so that it answers what the server still has.
"""

import json
import logging
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dlrm_app.errors import DlrmError
from dlrm_app.inference.serve.answers import RowProblem, Scored
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.records import from_json

if TYPE_CHECKING:  # the server reads this module too, and loads no torch
    from dlrm_app.inference.serve.served_export import ServedExport

HEAD = struct.Struct("!Q")
"""The length before a message."""
DONE, FAILED = b"+", b"-"
"""How the process's messages begin; one that failed goes on with the reason."""


@dataclass(frozen=True)
class Order:
    """What to score with: ``capacity`` rows at once and ``threads``."""

    folder: str
    capacity: int
    threads: int


@dataclass(frozen=True)
class Served:
    """The export that a process scores with, and the columns of its raw rows."""

    folder: str
    identity: str
    checkpoint: str
    step: int
    spec: Spec


def frame(message: bytes) -> bytes:
    """``message`` as it is sent."""
    return HEAD.pack(len(message)) + message


def pack_scored(scored: Scored) -> bytes:
    """The scores, then the problems."""
    problems = json.dumps([asdict(problem) for problem in scored.problems]) if scored.problems else ""
    return struct.pack(f"{len(scored.scores)}d", *scored.scores) + problems.encode()


def unpack_scored(message: bytes, num_lines: int) -> Scored:
    """The inverse of ``pack_scored``, for so many lines."""
    end = 8 * num_lines
    problems = json.loads(message[end:]) if len(message) > end else []
    scores = struct.unpack(f"{num_lines}d", message[:end])
    return Scored(list(scores), [from_json(RowProblem, problem) for problem in problems])


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    with suppress(BrokenPipeError, ConnectionResetError):  # the server is gone
        connection = socket.socket(fileno=int(sys.argv[1]))
        serve(connection.makefile("rb"), connection)
    os._exit(0)  # at once: Python's end and that of torch's threads would take a moment


def serve(stream: BinaryIO, connection: socket.socket) -> None:
    """Loads what the first message orders, and scores until there is no further one."""
    order = from_json(Order, json.loads(_receive(stream) or "null"))
    try:
        export = _open(order)
    except Exception as error:
        reason = str(error) if isinstance(error, DlrmError) else repr(error)
        _send(connection, FAILED + reason.encode())
        return
    record = export.export.record
    served = Served(order.folder, export.identity, record.checkpoint, record.step, export.spec)
    _send(connection, DONE + json.dumps(asdict(served)).encode())
    while (text := _receive(stream)) is not None:
        try:
            answer = DONE + pack_scored(export.score_lines(text.decode().split("\n")))
        except Exception as error:
            logging.exception("a batch failed")
            answer = FAILED + repr(error).encode()
        _send(connection, answer)


def _open(order: Order) -> "ServedExport":
    import pyarrow
    import torch

    from dlrm_app.distributed.runtime import quiet_libraries
    from dlrm_app.inference.serve.served_export import open_served

    quiet_libraries()
    torch.set_num_threads(order.threads)
    pyarrow.set_cpu_count(order.threads)
    return open_served(Path(order.folder), order.capacity)


def _receive(stream: BinaryIO) -> bytes | None:
    """The next message; None where the other side has ended."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    message = stream.read(length)
    return message if len(message) == length else None


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(frame(message))


if __name__ == "__main__":
    main()
