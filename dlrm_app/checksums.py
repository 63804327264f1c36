"""Checksums and sizes of files, and their differences from earlier ones."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from dlrm_app.errors import Problem
from dlrm_app.files import escapes


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Name → (bytes, checksum) of the files on disk now."""
    return {name: ((folder / name).stat().st_size, checksum(folder / name)) for name in names}


def differences(folder: Path, described: Mapping[str, tuple[int, str | None]]) -> list[Problem]:
    """Differences between files and an earlier result of ``describe_files``. Names are not trusted."""
    found = (
        Problem(name, "is outside the folder")
        if escapes(name)
        else file_difference(folder / name, *described[name])
        for name in described
    )
    return [difference for difference in found if difference]


def file_difference(path: Path, num_bytes: int | None, digest: str | None) -> Problem | None:
    """The difference of the file at ``path`` from the given size and checksum; None if there is none."""
    if not path.is_file():
        return Problem(str(path), "is missing")
    size = path.stat().st_size
    if num_bytes is not None and size != num_bytes:
        return Problem(str(path), f"has {size:,} bytes, not {num_bytes:,}")
    if digest is not None and checksum(path) != digest:
        return Problem(str(path), "has other bytes than were written (checksum)")
    return None


def checksum(path: Path) -> str:
    """``sha256:<hex>`` of the file's bytes."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def text_checksum(text: str) -> str:
    """``sha256:<hex>`` of ``text`` in UTF-8."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def data_checksum(data: bytes) -> str:
    """``sha256:<hex>`` of ``data``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class PartChecksums:
    """Checksums of the parts of a file, each of ``part_bytes``, from its bytes in blocks of any size."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes, self._room = part_bytes, part_bytes
        self._digest = hashlib.sha256()
        self._ended: list[str] = []

    def update(self, block: memoryview) -> None:
        while len(block):
            taken, block = block[: self._room], block[self._room :]
            self._digest.update(taken)
            self._room -= len(taken)
            if not self._room:
                self._ended.append(f"sha256:{self._digest.hexdigest()}")
                self._digest, self._room = hashlib.sha256(), self._part_bytes

    def result(self) -> list[str]:
        """The checksum of each part; the last one may be shorter."""
        is_part_open = self._room < self._part_bytes
        return self._ended + ([f"sha256:{self._digest.hexdigest()}"] if is_part_open else [])


def write_hashed(
    file: IO[bytes],
    blocks: Iterator[memoryview],
    start_thread: Callable[[], None] = lambda: None,
    *others: Callable[[memoryview], None],
) -> str:
    """Writes ``blocks`` to ``file``; returns the checksum of their bytes.

    While a block is written, one thread hashes it, one for each of the ``others`` takes it, and one more makes the next
    block; no more than two blocks exist at a time. ``start_thread`` is called first in each thread.
    """
    digest = hashlib.sha256()
    with ThreadPoolExecutor(2 + len(others), initializer=start_thread) as threads:
        following = threads.submit(next, blocks, None)
        while (block := following.result()) is not None:
            following = threads.submit(next, blocks, None)
            taken = [threads.submit(take, block) for take in (digest.update, *others)]
            file.write(block)
            for each in taken:
                each.result()
    return f"sha256:{digest.hexdigest()}"


def code_checksum(package: Path) -> str:
    """The checksum of the Python files below ``package``: other code may compute other results."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
