"""A plan as DistributedModelParallel takes it, with what it is estimated to cost."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.cost import Options, Workload
from dlrm_app.sharding.planner.placement import Assignment, Loads, Placed, rank_loads


@dataclass
class EstimatedPlan(ShardingPlan):
    """A ShardingPlan that knows its ranks and what each of them is estimated to carry."""

    cluster: Cluster
    assignment: Assignment
    work: Workload
    options: Options
    """What the planner chose from; none if the plan is from a file."""

    @property
    def loads(self) -> Loads:
        """By rank."""
        return rank_loads(self.assignment, self.cluster.num_ranks)


def module_paths(model: nn.Module) -> dict[str, str]:
    """Table name → the path of the EmbeddingBagCollection in ``model`` that holds it."""
    return {
        table.name: path
        for path, module in model.named_modules()
        if isinstance(module, EmbeddingBagCollection)
        for table in module.embedding_bag_configs()
    }


def to_plan(
    assignment: Assignment, options: Options, paths: Mapping[str, str], work: Workload, cluster: Cluster
) -> EstimatedPlan:
    """``assignment`` in torchrec's words; what the tables' constraints say of caches and rounding goes with it."""
    constraints = work.constraints(cluster)
    plan: dict[str, EmbeddingModuleShardingPlan] = {}
    for name, path in paths.items():
        module_plan = plan.setdefault(path, EmbeddingModuleShardingPlan())
        module_plan[name] = _parameter(assignment[name], constraints[name], cluster)
    return EstimatedPlan(plan, cluster, assignment, work, options)


def _parameter(placed: Placed, constraints: ParameterConstraints, cluster: Cluster) -> ParameterSharding:
    option = placed.option
    shards = [
        ShardMetadata(
            shard_sizes=[int(n) for n in size],
            shard_offsets=[int(n) for n in offset],
            placement=placement(cluster.device, rank, cluster.devices_per_node),
        )
        for size, offset, rank in zip(option.sizes, option.offsets, placed.ranks, strict=True)
    ]
    cache = copy.deepcopy(constraints.cache_params)
    if option.load_factor is not None:
        cache = replace(cache or CacheParams(), load_factor=option.load_factor)
    return ParameterSharding(
        sharding_spec=None if option.sharding_type == "data_parallel" else EnumerableShardingSpec(shards),
        sharding_type=option.sharding_type,
        compute_kernel=option.kernel,
        ranks=list(placed.ranks),
        cache_params=cache,
        enforce_hbm=constraints.enforce_hbm,
        stochastic_rounding=constraints.stochastic_rounding,
        bounds_check_mode=constraints.bounds_check_mode,
        output_dtype=constraints.output_dtype,
        key_value_params=copy.deepcopy(constraints.key_value_params),
    )


def to_assignment(plan: ShardingPlan, options: Options) -> Assignment:
    """What a ShardingPlan of torchrec's planner assigns, in terms of ``options``."""
    assignment: dict[str, Placed] = {}
    for module_plan in plan.plan.values():
        assert isinstance(module_plan, EmbeddingModuleShardingPlan)
        for name, sharding in module_plan.items():
            option = next(
                o
                for o in options[name]
                if (o.sharding_type, o.kernel) == (sharding.sharding_type, sharding.compute_kernel)
            )
            assignment[name] = Placed(option, tuple(sharding.ranks or ()))
    return assignment
