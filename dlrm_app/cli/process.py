"""The process of a command: imports without garbage collection, and output that cannot make a job fail."""

import gc
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

_loaded = threading.Event()


@contextmanager
def loading() -> Iterator[None]:
    """Disables garbage collection during imports (a fifth of a start), then freezes the imported objects.

    This happens once in a process: a sweep's next job has no imports left, and the objects of the previous job must be
    collected.
    """
    gc.disable()
    try:
        yield
    finally:
        if not _loaded.is_set():
            gc.freeze()
            _loaded.set()
        gc.enable()


class _Pipe(io.FileIO):
    """A stream whose reader may stop at any moment, such as ``| head``: the rest of the output is dropped."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


_COMMANDS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|(?<=.)\r(?=.)")
"""Characters that control a terminal. A carriage return at either end of a text comes from a progress bar."""


class _Printable(io.TextIOWrapper):
    """Writes control characters as text, such as ``\\x1b``: they come from names of files, headers and values."""

    def write(self, text: str, /) -> int:
        return super().write(_COMMANDS.sub(lambda found: repr(found[0])[1:-1], text))


def set_up_streams() -> None:
    """Replaces ``sys.stdout`` and ``sys.stderr`` by streams that survive the loss of their readers, do not control the
    terminal, print "?" for characters that its encoding lacks, and drop everything if the parent process closed them.
    """
    sys.stdout = _safe_stream(sys.stdout, sys.__stdout__)
    sys.stderr = _safe_stream(sys.stderr, sys.__stderr__)


def _safe_stream(stream: TextIO | None, first: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w")  # stays open as long as the process
    if stream is not first:  # replaced by a test
        return stream
    stream.flush()
    pipe = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
    return _Printable(pipe, stream.encoding, errors="replace", line_buffering=True)


def quiet_libraries() -> None:
    """Silences torchrec's and torch's plan logs, which would hide a command's own lines."""
    for name in ("torchrec", "torch.distributed", "fbgemm_gpu", "torch.fx._symbolic_trace"):
        logging.getLogger(name).setLevel(logging.ERROR)
