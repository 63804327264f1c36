"""How tables are spread over ranks, and what those ranks are."""

from dataclasses import dataclass

from dlrm_app.config.checks import above_zero, one_of, positive

SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
PLANNERS = ("fast", "torchrec")
DEVICES = ("cuda", "cpu")


@dataclass(slots=True)
class ShardingConfig:
    types: list[str] | None = None
    kernels: list[str] | None = None
    planner: str = "fast"
    plan: str | None = None

    def problems(self) -> list[str]:
        """What types cannot express, each with its cure."""
        return [
            *(
                problem
                for kind in self.types or []
                for problem in one_of("sharding.types", kind, SHARDING_TYPES)
            ),
            *one_of("sharding.planner", self.planner, PLANNERS),
        ]


@dataclass(slots=True)
class TopologyConfig:
    """A described cluster; memory and bandwidths are each rank's own. Null: what is there."""

    nodes: int | None = None
    devices_per_node: int | None = None
    device: str | None = None
    memory_gib: float | None = None
    host_memory_gib: float | None = None
    reserved_share: float = 0.15
    memory_gbps: float | None = None
    host_memory_gbps: float | None = None
    host_link_gbps: float | None = None
    intra_node_gbps: float | None = None
    inter_node_gbps: float | None = None

    @property
    def is_described(self) -> bool:
        """Whether it names a cluster rather than what is there."""
        return not (self.nodes is None and self.devices_per_node is None and self.device is None)

    def problems(self) -> list[str]:
        """Figures that no cluster has, and a description that is not whole."""
        problems = [
            *positive("topology.nodes", self.nodes),
            *positive("topology.devices_per_node", self.devices_per_node),
            *one_of("topology.device", self.device or "cpu", DEVICES),
            *(
                problem
                for key in (
                    "memory_gib",
                    "memory_gbps",
                    "host_memory_gbps",
                    "host_link_gbps",
                    "intra_node_gbps",
                    "inter_node_gbps",
                )
                for problem in above_zero(f"topology.{key}", getattr(self, key))
            ),
        ]
        if not 0 <= self.reserved_share < 1:
            problems.append(
                f"topology.reserved_share is the part of each rank's memory kept from the tables: "
                f"it must lie in [0, 1), got {self.reserved_share}"
            )
        if self.host_memory_gib is not None and not self.host_memory_gib >= 0:
            problems.append(f"topology.host_memory_gib must be at least 0, got {self.host_memory_gib}")
        needed = ("nodes", "devices_per_node", "device", "memory_gib")
        if self.is_described:
            missing = [f"topology.{key}" for key in needed if getattr(self, key) is None]
            if missing:
                problems.append(
                    f"a described cluster needs {', '.join(missing)} too; or choose one, as topology=a100_80g_8"
                )
        return problems
