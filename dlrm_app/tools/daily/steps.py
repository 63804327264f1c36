"""The steps of a day: commands and other work that is done once, whatever interrupts it, and timed."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from dlrm_app.config.overrides import Settings
from dlrm_app.files import write_json
from dlrm_app.tools.daily.record import SECONDS, read_seconds
from dlrm_app.tools.daily.settings import keys_as_typed

if TYPE_CHECKING:
    from dlrm_app.distributed.runtime import Runtime

logger = logging.getLogger(__name__)

RunCommand = Callable[[str, Settings, Path], None]
"""Runs a command with settings, and appends its output to a file. Raises DlrmError."""


@dataclass(frozen=True)
class Steps:
    """Runs the steps of ``day``, whose files are in ``folder``. Every rank does the same steps in the same order."""

    day: date
    folder: Path
    run: RunCommand
    ranks: "Runtime"

    def call(self, command: str, settings: Settings) -> None:
        """Runs ``command``. Raises its DlrmError with the keys that are typed for dlrm-days."""
        with keys_as_typed(command):
            self.run(command, settings, self.folder / "log.txt")

    def is_done(self, mark: Path) -> bool:
        """True if the file ``mark``, which a step leaves, is there."""
        return self.ranks.on_first(mark.is_file)

    def once(self, mark: Path, work: Callable[[], None]) -> None:
        """Runs a step on the first rank, unless it is done. The other ranks wait."""
        if not self.is_done(mark):
            self.ranks.on_first(work)

    def once_on_all(self, mark: Path, work: Callable[[], None]) -> None:
        """Runs a step on all ranks, unless it is done."""
        if not self.is_done(mark):
            self.ranks.together(work)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds the seconds of the block to those of ``step`` in seconds.json."""
        logger.info("%s: %s", self.day, step)
        started = time.perf_counter()
        try:
            yield
        finally:
            if self.ranks.is_first:
                spent = read_seconds(self.folder)
                spent[step] = round(spent.get(step, 0.0) + time.perf_counter() - started, 3)
                write_json(self.folder / SECONDS, spent)
