"""The mean training loss over all ranks, read now and then without slowing the steps between."""

import time

import torch
import torch.distributed as dist

from dlrm_app.runtime import Runtime


class LossMeter:
    """Adds up losses on the device; a reading is the one moment that waits for it and for the other ranks."""

    def __init__(self, runtime: Runtime) -> None:
        self._world_size = runtime.world_size
        self._sum = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self._count = 0
        self._epoch_sum = 0.0
        self._epoch_count = 0
        self._last_read = time.perf_counter()

    def add(self, loss: torch.Tensor) -> None:
        """Adds this rank's loss of one step."""
        self._sum += loss
        self._count += 1

    def read(self) -> tuple[float, float]:
        """(mean loss over all ranks, seconds per step) since the last reading. Every rank must call it."""
        if self._world_size > 1:
            dist.all_reduce(self._sum)
        total = float(self._sum) / self._world_size
        mean = total / self._count
        now = time.perf_counter()
        seconds = (now - self._last_read) / self._count
        self._epoch_sum += total
        self._epoch_count += self._count
        self._sum.zero_()
        self._count = 0
        self._last_read = now
        return mean, seconds

    def mean_of_epoch(self) -> float:
        """The mean loss over every step read so far."""
        return self._epoch_sum / max(1, self._epoch_count)
