"""A store in memory, whose process may end at any request."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from dlrm_app.checksums import data_checksum
from dlrm_app.stores.objects import StoredFile, StoredFolder


class KilledError(BaseException):
    """Raised in place of a request: the process has been killed before it."""


@dataclass(frozen=True)
class MemoryFolder(StoredFolder):
    """The objects of one folder. ``request`` is called before each change, with what is to be changed."""

    objects: dict[str, bytes] = field(default_factory=dict)
    request: Callable[[str], None] = lambda what: None

    leases: dict[str, bytes] = field(default_factory=dict)

    def list(self) -> dict[str, StoredFile]:
        return {name: _described(data) for name, data in self.objects.items()}

    def link(self) -> None:
        return None

    def create(self, name: str, data: bytes) -> str | None:
        return None if name in self.leases else self._written(name, data)

    def replace(self, name: str, data: bytes, tag: str) -> str | None:
        found = self.read(name)
        return None if found is None or found[1] != tag else self._written(name, data)

    def read(self, name: str) -> tuple[bytes, str] | None:
        data = self.leases.get(name)
        return None if data is None else (data, _described(data).tag)

    def _written(self, name: str, data: bytes) -> str:
        self.leases[name] = data
        return _described(data).tag

    def get(self, name: str, path: Path, digest: str = "") -> StoredFile:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.objects[name])
        return _described(self.objects[name])

    def get_part(self, name: str, begin: int, end: int, digest: str) -> bytes:
        data = self.objects[name][begin:end]
        if data_checksum(data) != digest:
            raise self._of_other_bytes(name)
        return data

    def put(self, name: str, path: Path) -> StoredFile:
        data = path.read_bytes()
        self.request(f"put {name}")
        self.objects[name] = data
        return _described(data)

    def write(self, name: str, data: bytes) -> None:
        self.request(f"put {name}")
        self.objects[name] = data

    def copy(self, name: str, to: str, digest: str) -> StoredFile:
        self.request(f"copy {to}")
        self.objects[to] = self.objects[name]
        return _described(self.objects[to])

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            if self.leases.pop(name, None) is not None:
                continue
            self.request(f"delete {name}")
            self.objects.pop(name, None)


def _described(data: bytes) -> StoredFile:
    digest = sha256(data).hexdigest()
    return StoredFile(len(data), digest[:8], f"sha256:{digest}")
