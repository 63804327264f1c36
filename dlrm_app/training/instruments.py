"""Instruments that measure the steps of a run: throughput, mean loss, largest part of a step, trace."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.profiler import profile, schedule

from dlrm_app.distributed.collectives import all_gather_stacked, all_reduce_sum
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.metrics import entropy
from dlrm_app.files import written_whole
from dlrm_app.loader.supervision import Supervision
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.runs.events import TITLES

logger = logging.getLogger(__name__)


class Throughput:
    """Times steps. Read it only once the device has finished them.

    Evaluations and saves between steps are left out, as in ``Progress.samples_per_second``, the throughput of a whole
    run.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Drops the time and the steps since the last reading."""
        self._started = self._resumed = time.perf_counter()
        self._num_steps = 0

    @contextmanager
    def paused(self, progress: Progress) -> Iterator[None]:
        """Leaves the block's time out of the next reading; adds the time before it to ``progress.train_seconds``."""
        paused = time.perf_counter()
        progress.train_seconds += paused - self._resumed
        try:
            yield
        finally:
            self._resumed = time.perf_counter()
            self._started += self._resumed - paused

    def add_step(self) -> None:
        """Counts a step."""
        self._num_steps += 1

    def seconds_per_step(self) -> float:
        """Seconds per step since the last reading or restart."""
        seconds = (time.perf_counter() - self._started) / max(1, self._num_steps)
        self._started, self._num_steps = time.perf_counter(), 0
        return seconds


NO_STEP = 2**62
"""A number above any step: stands for "none" where a minimum is taken."""
MAX_LOSSES = 4096
"""Losses kept on the device before they are added up; on a GPU each takes 512 bytes."""


def click_sums(logits: torch.Tensor, supervision: Supervision, kept_share: float) -> torch.Tensor:
    """Sums over rows by their main labels' ``logits`` [B], float64 [4]: rows, clicks, log losses, predictions.

    Rows count by their weights, and negatives 1 / ``kept_share`` times.
    """
    wide, truth, once = logits.double(), supervision.labels[0].double(), supervision.weights.double()
    if kept_share < 1:
        once = torch.where(truth > 0, once, once / kept_share)
    losses = F.binary_cross_entropy_with_logits(wide, truth, reduction="none")
    return torch.stack([torch.ones_like(wide), truth, losses, wide.sigmoid()]) @ once


def ne_and_calibration(sums: Sequence[float]) -> tuple[float, float]:
    """NE and calibration from the ``click_sums`` of rows; nan where they are undefined."""
    rows, clicks, losses, predictions = sums
    constant = rows * entropy(clicks / rows) if rows else 0.0
    return losses / constant if constant else math.nan, predictions / clicks if clicks else math.nan


class LossMeter:
    """Keeps losses on the device, with no kernel of its own; only readings wait for the device and other ranks.

    Beside them it adds up the ``click_sums`` of steps, in their order.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._on_device: dict[int, torch.Tensor] = {}
        self._sum = 0.0
        self._count = 0
        self._first_bad = NO_STEP
        self._epoch_sum = 0.0
        self._epoch_count = 0
        self._clicks = self._no_clicks()

    def _no_clicks(self) -> torch.Tensor:
        return torch.zeros(4, dtype=torch.float64, device=self._runtime.device)

    def add(self, loss: torch.Tensor, step: int, clicks: torch.Tensor | None = None) -> None:
        """Adds this rank's loss [] of ``step``, and its ``click_sums`` [4], if they are known."""
        if clicks is not None:
            self._clicks += clicks
        self._on_device[step] = loss
        self._count += 1
        if len(self._on_device) == MAX_LOSSES:
            self._fetch()

    def _fetch(self) -> None:
        """Adds up losses on the device in the order of the steps: the same to the bit whenever they are read."""
        losses = torch.stack([*self._on_device.values()]).tolist() if self._on_device else []
        for step, loss in zip(self._on_device, losses, strict=True):
            self._sum += loss
            if not math.isfinite(loss):
                self._first_bad = min(self._first_bad, step)
        self._on_device.clear()

    def _own_sum(self) -> torch.Tensor:
        self._fetch()
        return torch.tensor(self._sum, dtype=torch.float64, device=self._runtime.device)

    def first_bad_step(self) -> int | None:
        """The first step whose loss was NaN or inf on any rank. Every rank must call it."""
        self._fetch()
        step = int(all_gather_stacked(torch.tensor(self._first_bad, device=self._runtime.device)).min())
        return None if step == NO_STEP else step

    @property
    def has_unread(self) -> bool:
        """True if losses were added since the last reading."""
        return self._count > 0

    def read(self) -> float:
        """The mean loss over all ranks since the last reading. Every rank must call it."""
        total = float(all_reduce_sum(self._own_sum())) / self._runtime.world_size
        mean = total / self._count
        self._epoch_sum += total
        self._epoch_count += self._count
        self._sum, self._count = 0.0, 0
        return mean

    def read_clicks(self) -> tuple[float, float]:
        """NE and calibration of all ranks' rows since the last reading; nan if unknown. Every rank must call it."""
        found = ne_and_calibration(all_gather_stacked(self._clicks).sum(0).tolist())
        self._clicks = self._no_clicks()
        return found

    def mean_of_epoch(self) -> float:
        """The mean loss over every step of the epoch that was read; nan if none was."""
        return self._epoch_sum / self._epoch_count if self._epoch_count else math.nan

    def mean_so_far(self) -> float:
        """The mean loss over every step of the epoch so far, read or not; nan if there was none.

        Every rank must call it.
        """
        unread = float(all_reduce_sum(self._own_sum())) / self._runtime.world_size
        count = self._epoch_count + self._count
        return (self._epoch_sum + unread) / count if count else math.nan

    def start_epoch(self) -> None:
        """Forgets the previous epoch."""
        self._epoch_sum, self._epoch_count = 0.0, 0

    def state(self) -> LossSums:
        """Loss sums of all ranks that are not read yet. Every rank must call it."""
        sums = all_gather_stacked(self._own_sum()).tolist()
        clicks = all_gather_stacked(self._clicks).tolist()
        return LossSums(sums, self._count, self._epoch_sum, self._epoch_count, clicks)

    def load_state(self, state: LossSums) -> None:
        """Continues from ``state``; under another number of ranks the mean stays the same."""
        if len(state.sums) == self._runtime.world_size:
            self._sum = state.sums[self._runtime.rank]
        else:
            self._sum = sum(state.sums) / len(state.sums)
        by_rank = torch.tensor(state.clicks, dtype=torch.float64, device=self._runtime.device)
        is_same = len(by_rank) == self._runtime.world_size
        self._clicks = by_rank[self._runtime.rank] if is_same else by_rank.sum(0) / self._runtime.world_size
        self._count = state.count
        self._epoch_sum, self._epoch_count = state.epoch_sum, state.epoch_count


def largest_part(step_ms: Mapping[str, float]) -> str:
    """The part that takes the most time, and its share, in words; empty if nothing was measured."""
    total = sum(step_ms.values())
    if not total:
        return ""
    part = max(step_ms, key=lambda name: step_ms[name])
    return f"{TITLES[part]} {step_ms[part] / total:.0%}"


WAIT, ACTIVE = 10, 4
"""Steps before those of a trace, and steps of a trace."""


class Trace:
    """Records steps 11 to 14 for ``folder``/trace-rank-<rank>.json, if it ``is_wanted``."""

    def __init__(self, is_wanted: bool, folder: Path, runtime: Runtime) -> None:
        self._path = folder / f"trace-rank-{runtime.rank}.json"
        self._profile: profile | None = None
        self._num_steps = 0
        if is_wanted:  # records the GPU too, if there is one
            steps = schedule(wait=WAIT - 1, warmup=1, active=ACTIVE, repeat=1)
            self._profile = profile(schedule=steps, on_trace_ready=self._write)
            self._profile.start()

    @property
    def is_active(self) -> bool:
        """True while it warms up or records: no other profiler may run then."""
        return self._profile is not None and WAIT - 1 <= self._num_steps < WAIT + ACTIVE

    def after_step(self) -> None:
        """Starts and ends the recording at its steps."""
        self._num_steps += 1
        if self._profile is not None:
            self._profile.step()

    def close(self) -> None:
        """Writes the part of an unfinished recording that exists."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, recorded: profile) -> None:
        with written_whole(self._path) as unfinished:
            recorded.export_chrome_trace(str(unfinished))
        logger.info("trace: %s; open it at https://ui.perfetto.dev", self._path)
