"""The process of a command: imports without collecting garbage, and output that cannot make a job fail."""

import gc
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


@contextmanager
def loading() -> Iterator[None]:
    """Disables garbage collection during imports, a fifth of a start, then freezes what was imported.

    Once in a process: a sweep's next job has all it needs, and what the one before left must be collected.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Pipe(io.FileIO):
    """A reader may leave at any moment, as ``| head`` does: the rest of the output is dropped, and the job continues."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


_COMMANDS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|(?<=.)\r(?=.)")
"""Characters that a terminal obeys. A carriage return at an end of what is written is a progress bar's."""


class _Printable(io.TextIOWrapper):
    """Writes characters that a terminal would obey as ``\\x1b``: they come from names of files, headers and values."""

    def write(self, text: str, /) -> int:
        return super().write(_COMMANDS.sub(lambda found: repr(found[0])[1:-1], text))


def set_up_streams() -> None:
    """Puts streams in the place of ``sys.stdout`` and ``sys.stderr`` that outlive their readers, give no commands to a
    terminal, print "?" for what its encoding lacks, and swallow all where whoever started us closed them."""
    sys.stdout = _patient(sys.stdout, sys.__stdout__)
    sys.stderr = _patient(sys.stderr, sys.__stderr__)


def _patient(stream: TextIO | None, first: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w")  # as long as the process lives
    if stream is not first:  # a test's
        return stream
    stream.flush()
    pipe = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
    return _Printable(pipe, stream.encoding, errors="replace", line_buffering=True)
