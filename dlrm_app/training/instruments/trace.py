"""A few steps as torch's profiler sees them, in a file that https://ui.perfetto.dev opens."""

import logging
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.files import written_whole

logger = logging.getLogger(__name__)

WARM_STEPS, NUM_STEPS = 10, 4
"""Steps before the first that is recorded, and how many are."""


class Trace:
    """Records steps for ``folder``/trace-rank-<rank>.json, if it ``is_wanted``."""

    def __init__(self, is_wanted: bool, folder: Path, runtime: Runtime) -> None:
        self._path = folder / f"trace-rank-{runtime.rank}.json"
        self._left = NUM_STEPS if is_wanted else 0
        self._num_steps = 0
        self._profile: profile | None = None
        self._activities = [ProfilerActivity.CPU]
        if runtime.device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)

    def before_step(self) -> None:
        """Begins where it should."""
        if self._left and self._num_steps == WARM_STEPS:
            self._profile = profile(activities=self._activities)
            self._profile.start()
        self._num_steps += 1

    def after_step(self) -> None:
        """Writes the file after the last step that is recorded."""
        if self._profile is not None:
            self._left -= 1
            if not self._left:
                self.close()

    def close(self) -> None:
        """Ends the recording; writes what there is of it."""
        if self._profile is None:
            if self._left:
                logger.warning(
                    "no trace: profiler=true records steps %d to %d, and this start took %d",
                    WARM_STEPS + 1,
                    WARM_STEPS + NUM_STEPS,
                    self._num_steps,
                )
            return
        self._profile.stop()
        with written_whole(self._path) as unfinished:
            self._profile.export_chrome_trace(str(unfinished))
        self._profile, self._left = None, 0
        logger.info("trace: %s; open it at https://ui.perfetto.dev", self._path)
