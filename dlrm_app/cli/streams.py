"""Standard output and error that no reader, terminal or locale can make a job fail by."""

import io
import os
import sys
from pathlib import Path
from typing import Any, TextIO


class _Pipe(io.FileIO):
    """A reader may leave at any moment, as ``| head`` does: what it would have read is dropped, and the job goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def set_up_streams() -> None:
    """Puts streams in the place of ``sys.stdout`` and ``sys.stderr`` that outlive their readers, print "?" for what the
    terminal's encoding lacks, and swallow all where whoever started us closed them."""
    sys.stdout = _patient(sys.stdout, sys.__stdout__)
    sys.stderr = _patient(sys.stderr, sys.__stderr__)


def _patient(stream: TextIO | None, first: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w")  # as long as the process lives
    if stream is not first:  # a test's
        return stream
    stream.flush()
    pipe = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(pipe, stream.encoding, errors="replace", line_buffering=True)
