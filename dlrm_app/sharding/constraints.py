"""What may be done with each table: sharding types and compute kernels, from the configuration and the specs."""

from collections.abc import Sequence

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.tables import Table, to_constraints

# These two train alike: row-wise Adagrad keeps one accumulator a row under both, while column-wise shards
# would each keep their own.
DEFAULT_TYPES = ["table_wise", "row_wise"]


def table_constraints(
    tables: Sequence[Table], sharding: ShardingConfig, world_size: int
) -> dict[str, ParameterConstraints]:
    """What the planner may do with each table, by name."""
    types = sharding.types or (DEFAULT_TYPES if world_size > 1 else ["table_wise"])
    kernels = sharding.kernels or ["fused"]
    constraints = {}
    for table in tables:
        chosen = to_constraints(table, types, kernels)
        if "data_parallel" in (chosen.sharding_types or ()):
            chosen.compute_kernels = [
                *(chosen.compute_kernels or ()),
                "dense",
            ]  # replicated tables have no other
        constraints[table.name] = chosen
    return constraints


def use_dense_kernel(plan: ShardingPlan, names: frozenset[str]) -> None:
    """Gives the tables of ``names`` the dense kernel, wherever their shards lie.

    Done after planning: the kernel runs under every sharding type, but the planner's own check refuses it for
    all but data_parallel.
    """
    for module_plan in plan.plan.values():
        assert isinstance(module_plan, EmbeddingModuleShardingPlan)
        for name, sharding in module_plan.items():
            if name in names:
                sharding.compute_kernel = EmbeddingComputeKernel.DENSE.value
