"""An object of a store as an open file.

The ranges of bytes to read are given when it is opened. Threads fetch the next ranges in the background, which hides
the latency of requests.
"""

import io
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from dlrm_app.logs.sources.store import AT_ONCE, Address, fetch

PIECE_BYTES, SMALL_BYTES = 4 << 20, 1 << 16
"""The bytes of a request in the background, and of the smallest request."""
MOST_BYTES = 64 << 20
"""The most bytes of a file's ranges that are fetched all at once."""
_AHEAD = 3
"""The number of pieces to prefetch if the ranges have more bytes than that."""
NEAR_BYTES = 1 << 18
"""The most bytes between two ranges that are fetched in one request."""


class RemoteFile(io.RawIOBase):
    """An object, read by one thread. ``extents``: the ranges that will be read, each from its beginning to its end.

    With ``in_order`` nothing is read twice, so bytes are freed once they are read.
    """

    def __init__(
        self,
        address: Address,
        version: tuple[int, str],
        extents: Sequence[tuple[int, int]] = (),
        *,
        in_order: bool = False,
    ) -> None:
        super().__init__()
        self._in_order = in_order
        self._address, self._version, self._size = address, version, version[0]
        num_here = len(address.beginning)
        extents = [(max(start, num_here), stop) for start, stop in extents if stop > num_here]
        self._takes_all = sum(stop - start for start, stop in extents) <= MOST_BYTES + PIECE_BYTES
        runs = _joined(extents) if self._takes_all else sorted(extents)
        step = (
            PIECE_BYTES
            if self._takes_all
            else min(max(MOST_BYTES // ((_AHEAD + 1) * len(runs)), SMALL_BYTES), PIECE_BYTES)
        )
        self._pieces = [
            (at, min(at + step, stop), run)  # the pieces of one run are read in order
            for run, (start, stop) in enumerate(runs)
            for at in range(start, stop, step)
        ]
        self._fetched: dict[int, Future[bytes]] = {}
        self._loose = (0, b"")
        self._at = 0
        for start, _ in runs:
            self._fetch_from(self._number_of(start))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads into ``buffer``, up to the end of a piece. Returns the number of bytes, 0 only at the file's end."""
        start, data = self._bytes_here()
        part = memoryview(data)[self._at - start : self._at - start + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _bytes_here(self) -> tuple[int, bytes]:
        """Returns (the position of some bytes, the bytes), with the next byte among them."""
        if self._at < len(self._address.beginning):
            return 0, self._address.beginning
        number = self._number_of(self._at)
        if number >= 0 and self._at < self._pieces[number][1]:
            self._fetch_from(number)
            return self._pieces[number][0], self._fetched[number].result()
        start, data = self._loose
        if not start <= self._at < start + len(data):
            stop = min(self._at + SMALL_BYTES, self._size)
            self._loose = self._at, fetch(self._address, self._at, stop, self._version)
        return self._loose

    def _number_of(self, at: int) -> int:
        """The last piece that begins at ``at`` or earlier."""
        return bisect_right(self._pieces, at, key=lambda piece: piece[0]) - 1

    def _fetch_from(self, number: int) -> None:
        """Prefetches this piece and the next ones; drops earlier ones."""
        run = self._pieces[number][2]
        last = len(self._pieces) if self._takes_all else number + 1 + _AHEAD
        for other, (start, stop, its_run) in enumerate(self._pieces[number:last], number):
            if its_run == run and other not in self._fetched:
                self._fetched[other] = _threads().submit(fetch, self._address, start, stop, self._version)
        if self._in_order or not self._takes_all:
            for other in [it for it in self._fetched if it < number and self._pieces[it][2] == run]:
                self._fetched.pop(other).cancel()

    @contextmanager
    def in_memory(self, tail: bytes) -> Iterator[str | None]:
        """The path of a file in memory that has the fetched ranges in their places, then ``tail``.

        None if so many bytes are not fetched at once. Nothing else can be read afterwards.
        """
        if not self._takes_all:
            yield None
            return
        with os.fdopen(os.memfd_create("object"), "wb") as file:  # its holes take no memory
            file.write(self._address.beginning)
            for number, (start, _, _) in enumerate(self._pieces):
                file.seek(start)
                file.write(self._fetched.pop(number).result())
            file.write(tail)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"

    def close(self) -> None:
        for piece in self._fetched.values():
            piece.cancel()
        self._fetched = {}
        super().close()


def _joined(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """``extents`` in order; close ones are joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(extents):
        if joined and start - joined[-1][1] <= NEAR_BYTES:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif start < stop:
            joined.append((start, stop))
    return joined


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, "fetch")
