"""How tables are spread over ranks, and what those ranks are."""

from dataclasses import dataclass

from dlrm_app.config.checks import one_of

SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)


@dataclass(slots=True)
class ShardingConfig:
    types: list[str] | None = None
    kernels: list[str] | None = None

    def problems(self) -> list[str]:
        """What types cannot express, each with its cure."""
        return [
            problem for kind in self.types or [] for problem in one_of("sharding.types", kind, SHARDING_TYPES)
        ]


@dataclass(slots=True)
class TopologyConfig:
    memory_gib: float | None = None
