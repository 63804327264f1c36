"""Two machines, which are two network namespaces of this one, and a cable between them that can be cut."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")


@dataclass(frozen=True)
class Machines:
    """Names of the two namespaces; each has one end, ``cable``, of a pair of joined interfaces."""

    names: tuple[str, str]

    def set_cable(self, state: str) -> None:
        """``down``: packets vanish without a word to the sender, as when a switch loses its power."""
        ip("-n", self.names[1], "link", "set", "cable", state)

    def on(self, node: int) -> list[str]:
        """The words before a command that runs on machine ``node``."""
        return ["ip", "netns", "exec", self.names[node]]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def two_namespaces() -> Iterator[Machines]:
    """Skips the test where namespaces are not permitted."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # a terminated pytest takes its namespaces with it
    names = (f"dlrm-{os.getpid()}-0", f"dlrm-{os.getpid()}-1")
    with ExitStack() as stack:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not permitted here: {error.stderr.decode().strip()}")
            stack.callback(ip, "netns", "delete", name)
        first, second = (["cable", "netns", name] for name in names)
        ip("link", "add", *first, "type", "veth", "peer", "name", *second)
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for interface in ("lo", "cable"):
                ip("-n", name, "link", "set", interface, "up")
        yield Machines(names)
