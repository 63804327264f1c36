"""The cluster that tables are placed on: described by ``topology``, or the ranks that were started."""

import logging
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.machine import GIB, machine_memory

if TYPE_CHECKING:  # checks of a configuration must not wait for torchrec
    from torchrec.distributed.planner import Topology

logger = logging.getLogger(__name__)

STEP_BYTES = 2**28
MIN_FREE_SHARE = 0.9
"""Share of a GPU's memory. If less is free, another process uses the GPU; a context takes half a GiB."""


@dataclass(frozen=True)
class Bandwidths:
    """Bytes a millisecond (torchrec's unit) that each rank moves. The defaults are torchrec's, for V100s."""

    memory: float = 897 * GIB / 1000
    host_memory: float = 51 * GIB / 1000
    host_link: float = 32 * GIB / 1000
    intra_node: float = 600 * GIB / 1000
    inter_node: float = 12.5 * GIB / 1000


@dataclass(frozen=True)
class Cluster:
    """``nodes`` × ``devices_per_node`` equal ranks; bytes are per rank."""

    device: str
    nodes: int
    devices_per_node: int
    memory: int
    host_memory: int
    reserved_share: float
    bandwidths: Bandwidths = field(default_factory=Bandwidths)
    is_described: bool = True
    """True: described by topology's keys; False: the ranks that were started."""

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self.nodes * self.devices_per_node

    @property
    def usable(self) -> int:
        """Bytes of a rank's memory that tables may take."""
        return int(self.memory * (1 - self.reserved_share))

    @property
    def usable_host(self) -> int:
        """Bytes of the host's memory that a rank's tables may take."""
        return int(self.host_memory * (1 - self.reserved_share))

    def resized(self, num_ranks: int) -> "Cluster":
        """The same devices, ``num_ranks`` of them: part of one node, or whole nodes."""
        nodes = max(1, num_ranks // self.devices_per_node)
        return replace(self, nodes=nodes, devices_per_node=num_ranks // nodes)

    def __str__(self) -> str:
        nodes = f"{self.nodes} nodes × " if self.nodes > 1 else ""
        ranks = f"{self.devices_per_node} {self.device} rank{'s' * (self.num_ranks > 1)}"
        return f"{nodes}{ranks} of {self.memory / GIB:.4g} GiB"

    def to_torchrec(self) -> "Topology":
        """torchrec's Topology, with the memory that tables may take."""
        from torchrec.distributed.planner.types import (
            HardwareConfig,
            KernelConfig,
            TopologyFactory,
            TrainerConfig,
        )

        from dlrm_app.sharding.exchange import NodeBandwidths

        on_cpu, speed = self.device == "cpu", self.bandwidths
        ranks = TrainerConfig(
            world_size=self.num_ranks,
            local_world_size=self.devices_per_node,
            hbm_cap_bytes=0 if on_cpu else self.usable,
            ddr_cap_bytes=self.usable if on_cpu else self.usable_host,
        )
        hardware = HardwareConfig(
            hbm_mem_bw=speed.memory,
            ddr_mem_bw=speed.memory if on_cpu else speed.host_memory,
            hbm_to_ddr_mem_bw=speed.host_link,
        )
        rates = NodeBandwidths(speed.inter_node, speed.intra_node)
        kernel = KernelConfig(
            self.device, use_hardware_based_bandwidth=True, generalized_comms_bandwidths=rates
        )
        return TopologyFactory.create_topology(ranks, hardware, kernel)


CPU_BANDWIDTHS = Bandwidths(memory=Bandwidths.host_memory, intra_node=10e6, inter_node=1e6)
"""gloo's bandwidth between processes. With NVLink's, exchanges would cost nothing and every table would be split."""


def described_cluster(config: TopologyConfig) -> Cluster:
    """The cluster that ``config`` describes; ``config`` must be complete."""
    assert config.nodes is not None
    assert config.devices_per_node is not None
    assert config.device is not None
    assert config.memory_gib is not None
    return Cluster(
        config.device,
        config.nodes,
        config.devices_per_node,
        round(config.memory_gib * GIB),
        round((config.host_memory_gib or 0) * GIB),
        config.reserved_share,
        _bandwidths(config, config.device),
    )


def running_cluster(config: TopologyConfig, ranks: Ranks) -> Cluster:
    """The ranks that were started. Raises ConfigError if ``config`` describes others."""
    on_gpu = ranks.device_type == "cuda"
    of_machine = machine_memory() // ranks.local_world_size
    memory = free_gpu_bytes(ranks.gpu) if on_gpu and not config.memory_gib else of_machine
    host_memory = of_machine if on_gpu else 0
    started = Cluster(
        ranks.device_type,
        max(1, ranks.world_size // ranks.local_world_size),
        min(ranks.local_world_size, ranks.world_size),
        round(config.memory_gib * GIB) if config.memory_gib else memory,
        round(config.host_memory_gib * GIB) if config.host_memory_gib is not None else host_memory,
        config.reserved_share,
        _bandwidths(config, ranks.device_type),
        is_described=False,
    )
    if not config.is_described:
        return started
    described = described_cluster(config)
    asked, found = (f"{c.nodes} × {c.devices_per_node} {c.device} ranks" for c in (described, started))
    if asked != found:
        cure = (
            f"start them with torchrun --nnodes {described.nodes} --nproc-per-node {described.devices_per_node} …, "
            "plan only with dlrm-plan, or use topology=auto"
        )
        raise ConfigError(Problem("topology", f"describes {asked}, but {found} were started", cure))
    return described


def _bandwidths(config: TopologyConfig, device: str) -> Bandwidths:
    defaults = CPU_BANDWIDTHS if device == "cpu" else Bandwidths()
    given = {field.name: getattr(config, f"{field.name}_gbps") for field in fields(Bandwidths)}
    return replace(defaults, **{key: value * 1e6 for key, value in given.items() if value is not None})


def free_gpu_bytes(gpu: int) -> int:
    """Bytes that this process may still allocate: free on the GPU, or held by its own allocator for reuse.

    Rounded down to STEP_BYTES: small changes by other programs between two starts do not change the plan.
    """
    import torch

    free, total = torch.cuda.mem_get_info(gpu)
    free += torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    if free < MIN_FREE_SHARE * total:
        logger.warning(
            f"cuda:{gpu} has {free / GIB:.1f} of its {total / GIB:.1f} GiB free: other processes use it too "
            "(nvidia-smi); tables get the rest"
        )
    return free // STEP_BYTES * STEP_BYTES
