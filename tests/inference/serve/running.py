"""A server in a process of its own, and a client of it."""

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.commands import command
from tests.inference.shop import body_of

JSON = {"content-type": "application/json"}


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.model = ""
        """The name of the export that gave the last answer."""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        self._connection.request(method, path, body, {**JSON, **headers})
        response = self._connection.getresponse()
        text, self.model = response.read(), response.getheader("x-model", "")
        return response.status, text.decode() if path == "/metrics" else json.loads(text)

    def score(self, rows: list[Any]) -> tuple[int, Any]:
        return self.ask("POST", "/score", body_of(rows))


@contextmanager
def running(*keys: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """(the process of ``dlrm-serve *keys``, its port). It is killed in the end."""
    words = command("serve", "port=0", "threads=1", *keys)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/score", process.stdout.readline())
            assert found
            yield process, int(found[1])
        finally:
            process.kill()


def move(link: Path, target: Path) -> None:
    """As dlrm-days does, in one step."""
    temporary = link.with_suffix(".partial")
    temporary.symlink_to(target)
    temporary.replace(link)


def health(port: int) -> Any:
    return Client(port).ask("GET", "/health")[1]
