"""How tables are spread over ranks, and what those ranks are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from dlrm_app.config.checks import above_zero, one_of, positive, within

SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
KERNELS = ("fused", "fused_uvm", "fused_uvm_caching", "dense")
# Public builds of fbgemm-gpu are without the stores behind them: https://github.com/pytorch/FBGEMM/issues/5666
KEY_VALUE_KERNELS = ("key_value", "ssd_virtual_table", "dram_virtual_table", "dram_ssd_virtual_table")
COLLECTIVE_TYPES = ("fp32", "fp16", "bf16", "int8")
CONSTRAINT_KEYS = ("types", "kernels", "min_partition", "cache_load_factor")
"""What can be asked for one table, in its spec or by a pattern of ``sharding.tables``."""
PLANNERS = ("fast", "torchrec")
DEVICES = ("cuda", "cpu")
MAX_MEMORY_GIB = 2**30
"""Of a rank: an exbibyte."""
MAX_RANKS = 65_536
"""Of a described cluster: more than anyone has, and 26 tables are planned for in seconds."""


@dataclass(slots=True)
class CollectivesConfig:
    """How pooled embeddings travel to the ranks of their rows, and their gradients back."""

    forward: str = "fp32"
    backward: str = "fp32"


def collective_problems(
    config: CollectivesConfig, rows_per_rank: int, eval_rows_per_rank: int | None
) -> list[str]:
    """Batches that int8 cannot cut into whole rows of 32 values, tables being multiples of 4 wide."""
    if "int8" not in (config.forward, config.backward):
        return []
    return [
        f"sharding.collectives in int8 need a multiple of 8 rows per rank in {key}, got {rows}: use "
        f"{-(-rows // 8) * 8}, or bf16"
        for key, rows in (
            ("trainer.global_batch_size / ranks", rows_per_rank),
            ("evaluation.batch_size", eval_rows_per_rank),
        )
        if rows is not None and rows % 8
    ]


@dataclass(slots=True)
class ShardingConfig:
    """``tables`` maps a pattern of table names to constraints (CONSTRAINT_KEYS) for the tables that it fits."""

    types: list[str] | None = None
    kernels: list[str] | None = None
    tables: dict[str, Any] = field(default_factory=dict)
    collectives: CollectivesConfig = field(default_factory=CollectivesConfig)
    planner: str = "fast"
    plan: str | None = None

    def problems(self) -> list[str]:
        """What types cannot express, each with what to do."""
        return [
            *constraint_problems("sharding", {"types": self.types, "kernels": self.kernels}),
            *(
                problem
                for pattern, constraints in self.tables.items()
                for problem in constraint_problems(f"sharding.tables.{pattern}", constraints)
            ),
            *one_of("sharding.collectives.forward", self.collectives.forward, COLLECTIVE_TYPES),
            *one_of("sharding.collectives.backward", self.collectives.backward, COLLECTIVE_TYPES),
            *one_of("sharding.planner", self.planner, PLANNERS),
        ]

    def pattern_constraints(self, table: str) -> dict[str, Any]:
        """What the patterns that fit ``table`` ask for: of two that ask for one thing, the later."""
        merged: dict[str, Any] = {}
        for pattern, constraints in self.tables.items():
            if fnmatchcase(table, pattern):
                merged |= {key: value for key, value in constraints.items() if value is not None}
        return merged


def constraint_problems(where: str, constraints: Any) -> list[str]:
    """What is wrong with one table's or pattern's constraints, as ``where``.key; those that are null ask for nothing."""
    if not isinstance(constraints, Mapping):
        return [f"{where} must be a mapping with {', '.join(CONSTRAINT_KEYS)}, got {constraints!r}"]
    given = {key: value for key, value in constraints.items() if value is not None}
    problems = [
        f"{where}.{key} is not known: use {', '.join(CONSTRAINT_KEYS)}"
        for key in given
        if key not in CONSTRAINT_KEYS
    ]
    problems += _choice_problems(f"{where}.types", given.get("types", []), SHARDING_TYPES)
    problems += _choice_problems(f"{where}.kernels", given.get("kernels", []), KERNELS)
    width, share = given.get("min_partition", 4), given.get("cache_load_factor", 1)
    if not isinstance(width, int) or width < 4 or width % 4:
        problems.append(
            f"{where}.min_partition, the least columns of a shard, must be a multiple of 4, got {width!r}"
        )
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        problems.append(
            f"{where}.cache_load_factor, the share of rows on the GPU, must lie in (0, 1], got {share!r}"
        )
    return problems


def _choice_problems(key: str, values: Any, choices: tuple[str, ...]) -> list[str]:
    if not isinstance(values, list) or not values:
        return (
            [f"{key} must be a list of some of {', '.join(choices)}, got {values!r}"] if values != [] else []
        )
    problems = []
    for value in values:
        if value in KEY_VALUE_KERNELS and choices is KERNELS:
            problems.append(
                f"{key}: {value} keeps weights in a key-value store, which public builds of fbgemm-gpu "
                "leave out: use fused_uvm_caching, whose weights lie in the host's memory"
            )
        else:
            problems += one_of(key, value, choices)
    return problems


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
    fp32_tflops: float | None = None
    bf16_tflops: float | None = None
    loader_rows_per_second: float | None = None
    loader_ids_per_second: float | None = None
    efficiency: dict[str, float] = field(default_factory=dict)
    fixed_ms: dict[str, float] = field(default_factory=dict)

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
                above_zero("topology.memory_gib", self.memory_gib)
                or within("topology.memory_gib", self.memory_gib, 0, MAX_MEMORY_GIB)
            ),
            *within("topology.host_memory_gib", self.host_memory_gib, 0, MAX_MEMORY_GIB),
            *(
                problem
                for key in (
                    "memory_gbps",
                    "host_memory_gbps",
                    "host_link_gbps",
                    "intra_node_gbps",
                    "inter_node_gbps",
                    "fp32_tflops",
                    "bf16_tflops",
                    "loader_rows_per_second",
                    "loader_ids_per_second",
                )
                for problem in above_zero(f"topology.{key}", getattr(self, key))
            ),
        ]
        if not 0 <= self.reserved_share < 1:
            problems.append(
                f"topology.reserved_share is the part of each rank's memory kept from the tables: "
                f"it must lie in [0, 1), got {self.reserved_share}"
            )
        ranks = (self.nodes or 1) * (self.devices_per_node or 1)
        if ranks > MAX_RANKS:
            problems.append(
                f"topology.nodes × topology.devices_per_node must be at most {MAX_RANKS:,} ranks, got {ranks:,}"
            )
        needed = ("nodes", "devices_per_node", "device", "memory_gib")
        if self.is_described:
            missing = [f"topology.{key}" for key in needed if getattr(self, key) is None]
            if missing:
                problems.append(
                    f"topology describes a cluster in part: give {', '.join(missing)} too, or choose one, as topology=a100_80g_8"
                )
        return problems
