"""The ranks that were started, as their launcher and the machine tell it: nothing here waits for torch."""

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from dlrm_app.errors import ConfigError
from dlrm_app.machine import HIDDEN, Driver, find_driver


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


def num_started() -> int:
    """How many ranks torchrun says that there are; one without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def started_ranks() -> Ranks:
    """What torchrun says through the environment; without it, one rank.

    Raises ConfigError where there is an NVIDIA driver and no GPU that torch can use, unless the CPU was asked for.
    """
    world_size = num_started()
    return Ranks(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=world_size,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size))),
        device_type="cuda" if has_gpu(find_driver()) else "cpu",
    )


def has_gpu(driver: Driver | None) -> bool:
    """Whether this machine's ranks compute on GPUs. The CPU is asked for by hiding the GPUs, or by wheels for CPU.

    Raises ConfigError where it was not, and torch can use none: days on a CPU are no answer to a broken driver.
    """
    if driver is None or why_cpu():
        return False
    import torch

    if torch.cuda.is_available():
        return True
    raise ConfigError(
        [
            f"there is an NVIDIA driver ({driver}), but torch sees no GPU: {driver.fault or _why_no_gpu()}. dlrm-doctor says "
            "what to do; to compute on the CPU, hide the GPUs: CUDA_VISIBLE_DEVICES="
        ]
    )


def why_cpu() -> str | None:
    """By what the CPU was asked for in spite of a driver: hidden GPUs, or wheels for CPU. None: it was not."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in HIDDEN:
        return f"CUDA_VISIBLE_DEVICES={hidden} hides the GPUs"
    try:
        version("fbgemm-gpu-cpu")
    except PackageNotFoundError:
        return None
    return "fbgemm-gpu-cpu is installed, which is made for CPU (make setup DEVICE=cuda replaces it)"


def _why_no_gpu() -> str:
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types for it
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch is a build for CPU
        return str(error).splitlines()[0].rstrip(".")
    return "it does not say why"
