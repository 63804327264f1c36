"""A store in memory, whose process may end at any request."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from dlrm_app.stores.objects import StoredFile, StoredFolder


class KilledError(BaseException):
    """Raised in place of a request: the process has been killed before it."""


@dataclass(frozen=True)
class MemoryFolder(StoredFolder):
    """The objects of one folder. ``request`` is called before each change, with what is to be changed."""

    objects: dict[str, bytes] = field(default_factory=dict)
    request: Callable[[str], None] = lambda what: None

    def list(self) -> dict[str, StoredFile]:
        return {name: _described(data) for name, data in self.objects.items()}

    def get(self, name: str, path: Path) -> StoredFile:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.objects[name])
        return _described(self.objects[name])

    def put(self, name: str, path: Path) -> StoredFile:
        data = path.read_bytes()
        self.request(f"put {name}")
        self.objects[name] = data
        return _described(data)

    def copy(self, name: str, to: str, digest: str) -> StoredFile:
        self.request(f"copy {to}")
        self.objects[to] = self.objects[name]
        return _described(self.objects[to])

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.request(f"delete {name}")
            self.objects.pop(name, None)


def _described(data: bytes) -> StoredFile:
    digest = sha256(data).hexdigest()
    return StoredFile(len(data), digest[:8], f"sha256:{digest}")
