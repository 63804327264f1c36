"""The ranks that were started, as their launcher and the machine tell it: nothing here waits for torch."""

import ctypes
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks, and the kind of device that each computes on, ``cpu`` or ``cuda``."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device_type: str

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that prints and writes."""
        return self.rank == 0


def started_ranks() -> Ranks:
    """What torchrun says through the environment; without it, one rank."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    return Ranks(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=world_size,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size))),
        device_type="cuda" if _has_cuda() else "cpu",
    )


def _has_cuda() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")  # the driver, without which torch need not be asked
    except OSError:
        return False
    import torch

    return torch.cuda.is_available()
