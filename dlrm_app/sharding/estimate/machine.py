"""What a rank can do in a second, and how near its parts of a step come to that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.estimate.work import Loaded, Work

EFFICIENCY = 0.5
"""Of a part that nobody measured: half of what products and memory reach on large blocks."""
FIXED_MS = {"cpu": 0.3, "cuda": 0.1}
"""And what it takes for no rows at all: calls, and kernels to start."""


@dataclass(frozen=True)
class Machine:
    """A rank: flops by precision and bytes, a second; ``exchange``: bytes a second to each other rank's node.

    loader_rows, loader_ids: rows without ids, and ids, that its cores make batches of in a second in which they do nothing else.
    efficiency: part → floor over measured time, without the fixed part. fixed_ms: part → milliseconds of any step.
    """

    flops: Mapping[str, float]
    memory: float
    exchange: float
    efficiency: Mapping[str, float] = field(default_factory=dict)
    fixed_ms: Mapping[str, float] = field(default_factory=dict)
    device: str = "cpu"
    loader_rows: float = inf
    loader_ids: float = inf

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

    def loader_ms(self, what: Loaded) -> float:
        """What it takes to make a batch of the rows and ids of a dataset, without anything beside it."""
        return 1000 * (what.rows / self.loader_rows + what.ids / self.loader_ids)

    def beside_loader(self, parts_ms: Mapping[str, float], what: Loaded) -> dict[str, float]:
        """``parts_ms`` with what the loader adds to a step, as ``data``.

        On CPU it takes cores from the step and adds all its time. A GPU works meanwhile, and waits for what is left.
        """
        taken = self.loader_ms(what)
        added = taken if self.device == "cpu" else max(0.0, taken - sum(parts_ms.values()))
        return {**parts_ms, "data": parts_ms.get("data", 0.0) + added}


DATASHEETS = {
    "cuda": (19.5e12, 312e12),
    "cpu": (100e9, 100e9),
}
"""fp32 and bf16 flops a second where topology gives none: an A100's, and two AVX2 cores'."""

LOADER_ROWS, LOADER_IDS = 5e6, 5e7
"""Of a core a second, where topology gives none."""
LOADER_CORES = {"cuda": 8, "cpu": 2}
"""The most decoding threads that a rank starts; and the cores whose flops stand above."""


def described_machine(config: TopologyConfig, cluster: Cluster) -> Machine:
    """A rank of ``cluster``, which ``config`` describes."""
    fp32, bf16 = DATASHEETS[cluster.device]
    speed, cores = cluster.bandwidths, LOADER_CORES[cluster.device]
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
        loader_rows=config.loader_rows_per_second or cores * LOADER_ROWS,
        loader_ids=config.loader_ids_per_second or cores * LOADER_IDS,
    )
