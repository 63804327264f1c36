"""Shows progress: a bar on the first rank's terminal or notebook, or lines now and then in a log file."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tqdm import tqdm

LINE_SECONDS = 30
_is_hidden = False


def show_progress(shown: bool) -> None:
    """Turns progress bars on or off in this process. They are on at first; log lines stay as they are."""
    global _is_hidden
    _is_hidden = not shown


class _Lines:
    """Writes to stderr as a log file: each state of a bar is a line."""

    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


def _bar(*records: object, **settings: object) -> Any:
    if _is_hidden:
        return tqdm(*records, **{**settings, "disable": True})
    if _in_notebook():
        from tqdm.auto import tqdm as widget  # elsewhere it is tqdm itself, after 0.05 s of imports

        return widget(*records, **settings)
    return tqdm(*records, **settings)


def work_bar(records: Iterable[object] | None = None, **settings: object) -> Any:
    """A tqdm bar. If stderr is a file, work of more than 30 s prints a line every 30 s."""
    if sys.stderr.isatty() or _in_notebook():
        return _bar(records, **settings)
    intervals = {"mininterval": LINE_SECONDS, "maxinterval": 2 * LINE_SECONDS, "delay": LINE_SECONDS}
    return _bar(records, **settings, **intervals, file=_Lines(), leave=False)


@contextmanager
def progress_bar(
    title: str, total: int, shown: bool, unit: str = "batch", scale: bool = False, initial: int = 0
) -> Iterator[Any]:
    """A tqdm bar with rate and time left; log lines appear above it.

    Silent if not ``shown``, or if stderr is a file.
    """
    settings = {"total": total, "initial": initial, "desc": title, "unit": unit, "unit_scale": scale}
    disable = (False if _in_notebook() else None) if shown else True  # None: tqdm checks for a terminal
    bar = _bar(**settings, disable=disable, mininterval=0.5, dynamic_ncols=True, leave=False)
    with ExitStack() as entered:
        if not bar.disable and not _in_notebook():
            # here, as it imports asyncio, which takes 0.05 s of a command's start
            from tqdm.contrib.logging import logging_redirect_tqdm

            entered.enter_context(logging_redirect_tqdm())
        yield entered.enter_context(bar)
