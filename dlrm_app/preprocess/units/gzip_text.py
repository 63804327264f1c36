"""gzip files: their text is read with ISA-L, and their damage explained."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from isal import igzip, isal_zlib

from dlrm_app.errors import DataError
from dlrm_app.preprocess.units.source import GZIP_MAGIC, Source

MAX_RATIO = 20
"""Text is at most about so many times as large as its gzip file."""
_PIECE = 1 << 16
_DAMAGED: Any = (igzip.BadGzipFile, isal_zlib.error, zlib.error)


class DamagedFileError(DataError):
    """Source number ``source`` cannot be read to its end."""

    def __init__(self, message: str, source: int) -> None:
        super().__init__(message)
        self.message, self.source = message, source

    def __reduce__(self) -> Any:  # for workers of other processes
        return DamagedFileError, (self.message, self.source)


@contextmanager
def open_gzip(raw: BinaryIO) -> Iterator[Any]:
    """The decompressed text of ``raw``: an object with ``readinto`` and ``read``."""
    with igzip.IGzipFile(fileobj=raw, mode="rb") as file:
        # its own readinto makes a copy on the way, that of the buffer in it does not
        yield getattr(file, "_buffer", file)


@contextmanager
def explained_damage(source: Source) -> Iterator[None]:
    """Raises DamagedFileError, which says what to do, for what is wrong with a gzip file."""
    try:
        yield
    except (EOFError, *_DAMAGED) as error:
        end = _end_of_whole_data(source)
        if end is not None:
            fault = f"is whole gzip data up to byte {end}, and something else behind it"
        elif isinstance(error, EOFError):
            fault = "is cut short: its gzip data ends before its end mark"
        else:
            fault = f"is damaged: {error}"
        message = f"{source.path} {fault}; copy or download it again"
        raise DamagedFileError(message, source.index) from error


def _end_of_whole_data(source: Source) -> int | None:
    """Where a file's gzip data ends if it is whole and other bytes than zeros follow, else None. Reads it once more."""
    end, stream = 0, None
    with Path(source.path).open("rb") as file:
        while piece := file.read(_PIECE):
            while piece:
                if stream is None:
                    piece = piece.lstrip(b"\0")  # padding between streams
                    if not piece:
                        break
                    if piece[:2] != GZIP_MAGIC[: len(piece)]:
                        return end
                    stream = isal_zlib.decompressobj(wbits=31)
                try:
                    stream.decompress(piece)
                except _DAMAGED:
                    return None
                if not stream.eof:
                    break
                piece, stream = stream.unused_data, None
                end = file.tell() - len(piece)
    return None
