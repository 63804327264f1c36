"""The mean training loss over all ranks, read now and then without slowing the steps between."""

import math
import time
from typing import Any

import torch

from dlrm_app.distributed.collectives import all_gather_stacked, all_reduce_min, all_reduce_sum
from dlrm_app.distributed.runtime import Runtime

NONE_BAD = 2**62
"""More than any step: what "none" is to a minimum."""


class LossMeter:
    """Adds up losses on the device; a reading is the one moment that waits for it and for the other ranks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sum = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self._first_bad = torch.full((), NONE_BAD, dtype=torch.int64, device=runtime.device)
        self._count = 0
        self._epoch_sum = 0.0
        self._epoch_count = 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leaves the time since the last reading out of the next one's speed."""
        self._started, self._counted_from = time.perf_counter(), self._count

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Adds this rank's loss of ``step``."""
        self._sum += loss
        self._first_bad.clamp_(max=torch.where(torch.isfinite(loss), NONE_BAD, step))
        self._count += 1

    @property
    def has_unread(self) -> bool:
        """Whether losses were added since the last reading."""
        return self._count > 0

    def first_bad_step(self) -> int | None:
        """The first step whose loss was nan or inf on any rank. Every rank must call it."""
        first = int(all_reduce_min(self._first_bad))
        return None if first == NONE_BAD else first

    def read(self) -> tuple[float, float]:
        """(mean loss over all ranks, seconds per step) since the last reading. Every rank must call it."""
        total = float(all_reduce_sum(self._sum)) / self._runtime.world_size
        mean = total / self._count
        seconds = (time.perf_counter() - self._started) / max(1, self._count - self._counted_from)
        self._epoch_sum += total
        self._epoch_count += self._count
        self._sum.zero_()
        self._count = 0
        self.restart_clock()
        return mean, seconds

    def mean_of_epoch(self) -> float:
        """The mean loss over every step of the epoch that was read; nan if none was."""
        return self._epoch_sum / self._epoch_count if self._epoch_count else math.nan

    def start_epoch(self) -> None:
        """Forgets the epoch before."""
        self._epoch_sum, self._epoch_count = 0.0, 0

    def state(self) -> dict[str, Any]:
        """Everything added and not yet finished, of all ranks. Every rank must call it."""
        return {
            "sums": all_gather_stacked(self._sum).tolist(),
            "count": self._count,
            "epoch_sum": self._epoch_sum,
            "epoch_count": self._epoch_count,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from ``state``; under another number of ranks the mean stays the same."""
        sums = state["sums"]
        if len(sums) == self._runtime.world_size:
            value = sums[self._runtime.rank]
        else:
            value = sum(sums) / len(sums)
        self._sum.fill_(value)
        self._count = state["count"]
        self._epoch_sum, self._epoch_count = state["epoch_sum"], state["epoch_count"]
        self.restart_clock()
