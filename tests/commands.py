"""Starting the commands as a user does: the installed script, or ranks under torchrun."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def command(name: str, *overrides: str, ranks: int = 1) -> list[str]:
    """The arguments that start ``dlrm-NAME``: as it is installed, or its module on ``ranks`` ranks."""
    installed = [str(Path(sys.executable).with_name(f"dlrm-{name}"))]
    start = installed if ranks == 1 else [*torchrun(ranks), "-m", "dlrm_app.cli", name]
    return [*start, *overrides]


def torchrun(ranks: int) -> list[str]:
    """The arguments that start ranks on this machine; options, and a script or ``-m`` and a module, follow."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


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
