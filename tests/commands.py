"""Starting the commands as a user does: the installed script, or ranks under torchrun; and waiting for processes."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MadeOnce = Callable[[str, Callable[[Path], object]], Path]
"""The fixture ``made_once``, which shares a folder between the processes of the tests."""
Typed = Callable[..., tuple[int, str]]
"""The fixture ``typed``, which runs a command in the process of the test."""


def command(name: str, *overrides: str, ranks: int = 1) -> list[str]:
    """The arguments that start ``dlrm-NAME``: as it is installed, or its module on ``ranks`` ranks."""
    installed = [str(Path(sys.executable).with_name(f"dlrm-{name}"))]
    start = installed if ranks == 1 else [*torchrun(ranks), "-m", "dlrm_app.cli", name]
    return [*start, *overrides]


def torchrun(ranks: int) -> list[str]:
    """The arguments that start ranks on this machine; options, and a script or ``-m`` and a module, follow."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def on_two_machines(folders: Sequence[Path], words: Sequence[str], timeout: float = 300) -> None:
    """Runs a command on two ranks whose machines have ``folders`` as local sides of stores; both must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--nnodes", "2"]
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *meet,
        "--nproc-per-node",
        "1",
        "-m",
        "dlrm_app.cli",
    ]
    with ThreadPoolExecutor(2) as threads:
        each = [
            threads.submit(succeed, [*start, *words], folder.parent, timeout, DLRM_STORE_FOLDER=str(folder))
            for folder in folders
        ]
        for machine in each:
            machine.result()


def run(
    arguments: Sequence[str], folder: Path, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``arguments`` in ``folder`` to the end, on one thread a process unless it is told otherwise."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def succeed(
    arguments: Sequence[str], folder: Path, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """As ``run``; the test fails unless it ends well."""
    done = run(arguments, folder, timeout, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def wait_until(
    condition: Callable[[], bool], seconds: float, what: Callable[[], str] | str, every: float = 0.02
) -> None:
    """Polls ``condition``; fails the test, which waited for ``what``, when it does not hold within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, (
            f"waited {seconds} s for {what if isinstance(what, str) else what()}"
        )
        time.sleep(every)


def is_alive(pid: int) -> bool:
    """False also for a process that has ended and only waits to be collected."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """The processes that ``pid`` has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
