"""The mean training loss over all ranks, read now and then without slowing the steps between."""

import math

import torch

from dlrm_app.distributed.collectives import all_gather_stacked, all_reduce_sum
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.runs.checkpoint.progress import LossSums


class LossMeter:
    """Adds up losses on the device; a reading is the one moment that waits for it and for the other ranks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sum = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self._count = 0
        self._epoch_sum = 0.0
        self._epoch_count = 0

    def add(self, loss: torch.Tensor) -> None:
        """Adds this rank's loss of a step."""
        self._sum += loss
        self._count += 1

    @property
    def has_unread(self) -> bool:
        """Whether losses were added since the last reading."""
        return self._count > 0

    def read(self) -> float:
        """The mean loss over all ranks since the last reading. Every rank must call it."""
        total = float(all_reduce_sum(self._sum)) / self._runtime.world_size
        mean = total / self._count
        self._epoch_sum += total
        self._epoch_count += self._count
        self._sum.zero_()
        self._count = 0
        return mean

    def mean_of_epoch(self) -> float:
        """The mean loss over every step of the epoch that was read; nan if none was."""
        return self._epoch_sum / self._epoch_count if self._epoch_count else math.nan

    def start_epoch(self) -> None:
        """Forgets the epoch before."""
        self._epoch_sum, self._epoch_count = 0.0, 0

    def state(self) -> LossSums:
        """Everything added and not yet finished, of all ranks. Every rank must call it."""
        return LossSums(
            all_gather_stacked(self._sum).tolist(), self._count, self._epoch_sum, self._epoch_count
        )

    def load_state(self, state: LossSums) -> None:
        """Goes on from ``state``; under another number of ranks the mean stays the same."""
        if len(state.sums) == self._runtime.world_size:
            value = state.sums[self._runtime.rank]
        else:
            value = sum(state.sums) / len(state.sums)
        self._sum.fill_(value)
        self._count = state.count
        self._epoch_sum, self._epoch_count = state.epoch_sum, state.epoch_count
