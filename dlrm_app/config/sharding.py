"""Sharding of tables over ranks, and the cluster of those ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from dlrm_app.config.schema import Section
from dlrm_app.config.values import BelowOne, Count, Positive, value_problems
from dlrm_app.errors import Problem

ShardingType = Literal[
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
]
SHARDING_TYPES: tuple[str, ...] = get_args(ShardingType)
UNPOOLED_TYPES = ("data_parallel", "table_wise", "row_wise", "column_wise")
"""Types that torchrec supports for tables whose vectors are not pooled before the exchange."""
Kernel = Literal["fused", "fused_uvm", "fused_uvm_caching", "dense"]
KERNELS: tuple[str, ...] = get_args(Kernel)
CollectiveType = Literal["fp32", "fp16", "bf16"]
CONSTRAINTS: dict[str, object] = {
    "types": list[ShardingType],
    "kernels": list[Kernel],
    "min_partition": Annotated[int, Meta(ge=4, multiple_of=4)],  # the least number of columns of a shard
    "cache_load_factor": Annotated[float, Meta(gt=0, le=1)],  # the share of rows on the GPU
}
"""Constraints that a table can have, in its spec or by a pattern of ``sharding.tables``."""
Gib = Annotated[float, Meta(ge=0, le=2**30)]  # of a rank: an exbibyte at most
MAX_RANKS = 65_536
"""The most ranks of a described cluster: more than any real one, and 26 tables can be planned for it in seconds."""


@dataclass(slots=True)
class CollectivesConfig(Section):
    """Number formats for sending pooled embeddings to the ranks of their samples, and their gradients back."""

    forward: CollectiveType = "fp32"
    backward: CollectiveType = "fp32"


@dataclass(slots=True)
class ShardingConfig(Section):
    """The sharding of tables.

    ``tables``: pattern of table names → constraints (CONSTRAINTS) for the tables that it fits.
    """

    types: list[str] | None = None
    kernels: list[str] | None = None
    tables: dict[str, Any] = field(default_factory=dict)
    collectives: CollectivesConfig = field(default_factory=CollectivesConfig)
    plan: str | None = None

    def rules(self) -> Iterator[Problem]:
        yield from constraint_faults("", {"types": self.types, "kernels": self.kernels})
        for pattern, each in self.tables.items():
            yield from constraint_faults(f"tables.{pattern}", each)


def constraint_faults(where: str, constraints: object) -> Iterator[Problem]:
    """Problems of one table's or pattern's constraints, with keys as ``where``.key; null values are ignored."""
    names = ", ".join(CONSTRAINTS)
    if not isinstance(constraints, Mapping):
        yield Problem(where, f"must be a mapping with {names}", value=constraints)
        return
    for key, value in constraints.items():
        name = f"{where}.{key}".strip(".")
        if key not in CONSTRAINTS:
            yield Problem(name, "is not known", f"use {names}")
        elif value is not None:
            yield from value_problems(name, value, CONSTRAINTS[key])


@dataclass(slots=True)
class TopologyConfig(Section):
    """A described cluster; memory and bandwidths are per rank. Null: the actual value of the started ranks."""

    nodes: Count | None = None
    devices_per_node: Count | None = None
    device: Literal["cuda", "cpu"] | None = None
    memory_gib: Annotated[float, Meta(gt=0, le=2**30)] | None = None
    host_memory_gib: Gib | None = None
    reserved_share: BelowOne = 0.15
    memory_gbps: Positive | None = None
    host_memory_gbps: Positive | None = None
    host_link_gbps: Positive | None = None
    intra_node_gbps: Positive | None = None
    inter_node_gbps: Positive | None = None
    fp32_tflops: Positive | None = None
    bf16_tflops: Positive | None = None

    @property
    def is_described(self) -> bool:
        """True if it describes a cluster; False for the ranks that are started."""
        return not (self.nodes is None and self.devices_per_node is None and self.device is None)

    def rules(self) -> Iterator[Problem]:
        ranks = (self.nodes or 1) * (self.devices_per_node or 1)
        if ranks > MAX_RANKS:
            rule = f"× topology.devices_per_node must be at most {MAX_RANKS:,} ranks, got {ranks:,}"
            yield Problem("nodes", rule)
        needed = ("nodes", "devices_per_node", "device", "memory_gib")
        missing = [f"topology.{key}" for key in needed if getattr(self, key) is None]
        if self.is_described and missing:
            cure = f"give {', '.join(missing)} too, or choose one, as topology=a100_80g_8"
            yield Problem("", "describes a cluster in part", cure)
