"""Runs the commands that a day of dlrm-days consists of, and keeps what they would print in the day's log."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dlrm_app.config.overrides import Settings
from dlrm_app.distributed.launcher import LAUNCHED
from dlrm_app.errors import DlrmError
from dlrm_app.typed import words_of

OF_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def run_in_log(run: Callable[[str, Settings], object], name: str, settings: Settings, log: Path) -> None:
    """Runs ``dlrm-<name>`` by ``run`` and appends its result to ``log``. Raises DlrmError.

    An export runs in a process of its own: it compiles, and it runs on one rank, outside of the ranks' process group.
    """
    with log.open("a", encoding="utf-8") as file:
        words = words_of(settings)
        file.write(f"\n$ {shlex.join([f'dlrm-{name}', *words])}\n")
        file.flush()
        if name == "export":
            environment = {key: value for key, value in os.environ.items() if key not in OF_LAUNCHER}
            done = subprocess.run(
                [sys.executable, "-m", "dlrm_app.cli", name, *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, LAUNCHED: "1"},
                check=False,
            )
            if done.returncode:
                raise DlrmError(f"dlrm-{name} failed, see the end of {log}")
            return
        file.write(f"{run(name, settings)}\n")
