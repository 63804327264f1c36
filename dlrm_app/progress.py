"""Progress for people: a bar on the first rank's terminal, nothing on the others; in a log file a line now and then."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

LINE_SECONDS = 30


class _Lines:
    """stderr as a log file: each state of a bar is a line."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


def work_bar(records: Iterable[Any] | None = None, **settings: Any) -> Any:
    """A tqdm bar; where stderr is no terminal, a line each 30 s of work that takes longer."""
    if sys.stderr.isatty():
        return tqdm(records, **settings)
    rhythm = {"mininterval": LINE_SECONDS, "maxinterval": 2 * LINE_SECONDS, "delay": LINE_SECONDS}
    return tqdm(records, **settings, **rhythm, file=_Lines(), leave=False)


@contextmanager
def progress_bar(
    title: str, total: int, shown: bool, unit: str = "batch", scale: bool = False, initial: int = 0
) -> Iterator[Any]:
    """A tqdm bar with rate and time left; log lines appear above it. Silent unless ``shown``, and where stderr is no terminal."""
    settings = {"total": total, "initial": initial, "desc": title, "unit": unit, "unit_scale": scale}
    disable = None if shown else True  # None: tqdm looks for a terminal
    bar = tqdm(**settings, disable=disable, mininterval=0.5, dynamic_ncols=True, leave=False)
    with logging_redirect_tqdm(), bar:
        yield bar
