"""Files that are either whole or absent: a temporary name, fsync, then rename."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives a temporary path to write; it gets its final name only if the block ends well.

    The temporary file lies beside the final one (same file system), so the rename is atomic.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        give_name(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no other writer has."""
    # random, for processes of several machines, of one number even, may write the same file at the same time
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def give_name(temporary: Path, path: Path) -> None:
    """Gives a written file its final name once its bytes are on the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Makes renames in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes ``text`` to ``path``, whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes ``value`` as indented JSON to ``path``, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def checksum(path: Path) -> str:
    """``sha256:<hex>`` of the file's bytes."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"
