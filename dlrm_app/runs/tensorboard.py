"""A run's events in TensorBoard."""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlrm_app.records import leaves
from dlrm_app.runs.events import Event, event_to_json

logger = logging.getLogger(__name__)

NO_METRICS = ("epoch", "step", "judgement", "judgements")
"""Keys that say when an event happened, and what its metrics mean; all other numbers are metrics."""


class TensorBoard:
    """Writes scalars to ``folder``, on disk after every event. A failure ends it with a warning; the run continues.

    ``first_step``: steps taken before this process. TensorBoard hides older events of steps that are taken again.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)
        self._has_failed = False

    def add(self, event: Event) -> None:
        """Adds a scalar for each number of ``event``."""
        if self._has_failed:
            return
        try:
            values = event_to_json(event)
            for name, value in scalars(values):
                self._writer.add_scalar(name, value, event.step, time.time())
            self._writer.flush()
        except Exception as error:  # the library may raise anything
            self._has_failed = True
            logger.warning("TensorBoard failed and gets no more events (metrics.jsonl does): %s", error)

    def close(self) -> None:
        """Closes the file; every event is on disk already."""
        with suppress(Exception):
            self._writer.close()


def scalars(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(name, number) of every number of a line of metrics.jsonl: ``train/lr/sparse``, ``eval/val/auc``."""
    prefix = "/".join(values[key] for key in ("event", "split") if key in values)
    measured = {key: value for key, value in values.items() if key not in NO_METRICS}
    for name, value in leaves(measured, "/"):
        if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
            yield f"{prefix}/{name}", float(value)
