"""A run's checkpoints: when one is overdue, saving it, and which are kept."""

import time
from pathlib import Path

from dlrm_app.config.train import CheckpointConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import SharedError
from dlrm_app.runs.checkpoint.format import checkpoint_name, list_checkpoints, remove_old
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.pieces import copy_pieces, local_pieces
from dlrm_app.runs.checkpoint.save import save_checkpoint
from dlrm_app.runs.checkpoint.state import Tensors
from dlrm_app.runs.checkpoint.writer import Writer

LAST_SECONDS = 60.0
"""How long a run that ends by an error of one rank waits for the save under way."""


class Checkpoints:
    """Saves into ``folder`` as ``config`` says; leaving the block waits for the save under way. Every rank makes one."""

    def __init__(self, folder: Path, config: CheckpointConfig, runtime: Runtime) -> None:
        self._folder = folder
        self._config = config
        self._runtime = runtime
        self._writer = Writer(config.asynchronous)
        self._saved_at = time.monotonic()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        all_leave_together = error is None or isinstance(error, SharedError)
        if all_leave_together or self._runtime.world_size == 1:
            self._writer.finish()
        else:
            self._writer.abandon(LAST_SECONDS)

    @property
    def have_failed(self) -> bool:
        """Whether this rank knows that a save in the background failed: the next ``save`` raises it everywhere."""
        return self._writer.has_failed

    @property
    def are_none(self) -> bool:
        """Whether there is nothing that the run could go on from."""
        return self._runtime.decide_first(not list_checkpoints(self._folder))

    def are_overdue(self) -> bool:
        """Whether ``every_minutes`` have passed since the last one, by this rank's clock."""
        minutes = self._config.every_minutes
        return minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes

    def save(self, tensors: Tensors, marker: Marker) -> None:
        """Saves now, or begins to, once the save under way has ended. Raises SharedError for one that failed."""
        self._writer.finish()
        folder = self._folder / checkpoint_name(marker.progress.step)
        pieces = copy_pieces(tensors) if self._writer.in_background else local_pieces(tensors)

        def write() -> None:
            self._runtime.use_device()  # torch's writer looks for the current stream, which makes a context
            save_checkpoint(folder, tensors, pieces, marker, self._runtime, self._writer.group)
            if self._runtime.is_first:
                remove_old(self._folder, self._config.keep_last, self._config.keep_best)

        self._saved_at = time.monotonic()
        self._writer.start(write)

    def wait(self) -> None:
        """Waits for the save under way. Raises SharedError if it failed. Every rank must call it."""
        self._writer.finish()
