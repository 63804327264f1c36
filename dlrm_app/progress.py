"""Shows progress: a bar on the first rank's terminal, nothing on other ranks, and a line now and then in a log file."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tqdm import tqdm

LINE_SECONDS = 30


class _Lines:
    """Writes to stderr as a log file: each state of a bar is a line."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


def work_bar(records: Iterable[Any] | None = None, **settings: Any) -> Any:
    """A tqdm bar. If stderr is no terminal, work of more than 30 s prints a line every 30 s."""
    if sys.stderr.isatty():
        return tqdm(records, **settings)
    intervals = {"mininterval": LINE_SECONDS, "maxinterval": 2 * LINE_SECONDS, "delay": LINE_SECONDS}
    return tqdm(records, **settings, **intervals, file=_Lines(), leave=False)


@contextmanager
def progress_bar(
    title: str, total: int, shown: bool, unit: str = "batch", scale: bool = False, initial: int = 0
) -> Iterator[Any]:
    """A tqdm bar with rate and time left; log lines appear above it. Silent if not ``shown``, or if stderr is no terminal."""
    settings = {"total": total, "initial": initial, "desc": title, "unit": unit, "unit_scale": scale}
    disable = None if shown else True  # None: tqdm checks for a terminal
    bar = tqdm(**settings, disable=disable, mininterval=0.5, dynamic_ncols=True, leave=False)
    with ExitStack() as entered:
        if not bar.disable:
            # here, as it imports asyncio, which takes 0.05 s of a command's start
            from tqdm.contrib.logging import logging_redirect_tqdm

            entered.enter_context(logging_redirect_tqdm())
        yield entered.enter_context(bar)
