"""Progress for people: a bar on the first rank's terminal, nothing on the others nor in a log file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm


@contextmanager
def progress_bar(
    title: str, total: int, shown: bool, unit: str = "batch", scale: bool = False, initial: int = 0
) -> Iterator[Any]:
    """A tqdm bar with rate and time left; log lines appear above it. Silent unless ``shown``, and where stderr is no terminal."""
    with (
        logging_redirect_tqdm(),
        tqdm(
            total=total,
            initial=initial,
            desc=title,
            unit=unit,
            unit_scale=scale,
            disable=None if shown else True,  # None: tqdm looks for a terminal
            mininterval=0.5,
            dynamic_ncols=True,
            leave=False,
        ) as bar,
    ):
        yield bar
