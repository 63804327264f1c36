"""What a rank can do in a second, and how near its parts of a step come to that."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.estimate.work import Work

EFFICIENCY = 0.5
"""Of a part that nobody measured: half of what products and memory reach on large blocks."""
FIXED_MS = {"cpu": 0.3, "cuda": 0.1}
"""And what it takes for no rows at all: calls, and kernels to start."""


@dataclass(frozen=True)
class Machine:
    """A rank: flops by precision and bytes, a second; ``exchange``: bytes a second to each other rank's node.

    efficiency: part → floor over measured time, without the fixed part. fixed_ms: part → milliseconds of any step.
    """

    flops: Mapping[str, float]
    memory: float
    exchange: float
    efficiency: Mapping[str, float] = field(default_factory=dict)
    fixed_ms: Mapping[str, float] = field(default_factory=dict)
    device: str = "cpu"

    def floor_ms(self, work: Work, precision: str) -> float:
        """What ``work`` takes at least: its products or its bytes, whichever is more, and then what is sent."""
        products = work.flops / self.flops.get(precision, self.flops["fp32"])
        return 1000 * (max(products, work.bytes / self.memory) + work.sent / self.exchange)

    def floors_ms(self, work: Mapping[str, Work], precision: str) -> dict[str, float]:
        """Part → ``floor_ms``."""
        return {part: self.floor_ms(each, precision) for part, each in work.items()}

    def estimate_ms(self, work: Mapping[str, Work], precision: str) -> dict[str, float]:
        """Part → milliseconds of a step, those that only take time with them."""
        fixed = FIXED_MS[self.device]
        times = {
            part: self.fixed_ms.get(part, fixed) + floor / self.efficiency.get(part, EFFICIENCY)
            for part, floor in self.floors_ms(work, precision).items()
        }
        return times | {part: ms for part, ms in self.fixed_ms.items() if part not in work}


DATASHEETS = {
    "cuda": (19.5e12, 312e12),
    "cpu": (100e9, 100e9),
}
"""fp32 and bf16 flops a second where topology gives none: an A100's, and two AVX2 cores'."""


def described_machine(config: TopologyConfig, cluster: Cluster) -> Machine:
    """A rank of ``cluster``, which ``config`` describes."""
    fp32, bf16 = DATASHEETS[cluster.device]
    speed = cluster.bandwidths
    return Machine(
        flops={
            "fp32": fp32 if config.fp32_tflops is None else config.fp32_tflops * 1e12,
            "bf16": bf16 if config.bf16_tflops is None else config.bf16_tflops * 1e12,
        },
        memory=1000 * speed.memory,
        exchange=1000 * (speed.intra_node if cluster.nodes == 1 else speed.inter_node),
        efficiency=config.efficiency,
        fixed_ms=config.fixed_ms,
        device=cluster.device,
    )
