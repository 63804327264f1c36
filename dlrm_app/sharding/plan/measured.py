"""What the sharding plan estimated beside what the first steps measure: how far to trust a plan made elsewhere."""

import logging
import resource
from pathlib import Path

import torch

from dlrm_app.distributed.collectives import all_gather_stacked
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan

logger = logging.getLogger(__name__)

MIB = 2**20
MAX_LINES = 16
"""Above so many ranks only the largest figures are shown."""


class Measured:
    """Made before the model is, so that what was there already is left out. On CPU memory is the process's own."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._before = used_bytes(runtime.device)
        self._has_spoken = False

    def log_once(self, plan: EstimatedPlan, seconds_per_step: float) -> None:
        """Logs estimates and measurements of every rank, the first time. Every rank must call it.

        Not on a CPU that no topology describes: the defaults of its speeds say little of a step's time.
        """
        is_guess = self._runtime.device_type == "cpu" and not plan.cluster.is_described
        if self._has_spoken or is_guess:
            return
        self._has_spoken = True
        grown = max(0, peak_bytes(self._runtime.device) - self._before)
        mine = torch.tensor(
            [grown, 1000 * seconds_per_step], dtype=torch.float64, device=self._runtime.device
        )
        by_rank = all_gather_stacked(mine)
        if self._runtime.is_first:
            logger.info("%s", "\n".join(lines(plan, by_rank.cpu())))


def lines(plan: EstimatedPlan, measured: torch.Tensor) -> list[str]:
    """``measured`` [ranks, 2] holds bytes and milliseconds of a step."""
    memory, times = measured.unbind(1)
    estimated = torch.from_numpy(plan.loads.device), torch.from_numpy(plan.loads.time)
    table = [
        "estimated for the tables alone, and measured for all that was made since the start:",
        _line("largest", *(float(values.max()) for values in (estimated[0], memory, estimated[1], times))),
    ]
    if 1 < len(measured) <= MAX_LINES:
        rows = zip(estimated[0], memory, estimated[1], times, strict=True)
        table += [_line(f"rank {rank}", *map(float, row)) for rank, row in enumerate(rows)]
    return table


def _line(name: str, planned: float, used: float, planned_ms: float, used_ms: float) -> str:
    return (
        f"  {name:<8} memory {planned / MIB:10,.1f} MiB estimated, {used / MIB:10,.1f} MiB measured; "
        f"a step {planned_ms:8.3f} ms estimated, {used_ms:8.1f} ms measured"
    )


def used_bytes(device: torch.device) -> int:
    """What the device has allocated, or this process holds in memory."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes(device: torch.device) -> int:
    """The most that it ever was."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
