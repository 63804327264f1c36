"""A run's events in TensorBoard."""

import time
from collections.abc import Sequence
from pathlib import Path

from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import Event
from dlrm_app.runs.tracker import TrackedRun, Tracker, scalars


class TensorBoard(Tracker):
    """Writes scalars to RUN/tensorboard, on disk after every event."""

    def begin(self, run: TrackedRun) -> None:
        """Opens the file. TensorBoard hides older events of steps that are taken again."""
        from torch.utils.tensorboard import SummaryWriter

        first = run.step + 1 if run.step else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=first)

    def add(self, event: Event) -> None:
        kind = "eval/" if isinstance(event, Evaluation) else ""
        for name, value in scalars(event):
            self._writer.add_scalar(f"{kind}{name}", value, event.step, time.time())
        self._writer.flush()

    def end(self, files: Sequence[Path], *, is_finished: bool) -> None:
        self._writer.close()
