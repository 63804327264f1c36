"""The throughput between two lines of a run's log. That of a whole run is ``Progress.samples_per_second``.

Both are of the time while training: of steps, not of the evaluations and saves between them.
"""

import time


class Throughput:
    """Times steps of ``global_batch_size`` samples; to be read when the device has done them."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size = global_batch_size
        self.restart()

    def restart(self) -> None:
        """Leaves the time since the last reading out of the next one, and the steps with it."""
        self._started, self._num_steps = time.perf_counter(), 0

    def leave_out(self, seconds: float) -> None:
        """Takes time just spent on something else, an evaluation or a save, out of the next reading."""
        self._started += seconds

    def add_step(self) -> None:
        """Counts a step."""
        self._num_steps += 1

    def read(self) -> tuple[float, float]:
        """(samples per second, seconds per step) since the last reading or restart."""
        seconds = (time.perf_counter() - self._started) / max(1, self._num_steps)
        self.restart()
        return self._global_batch_size / seconds, seconds
