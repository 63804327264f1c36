"""A sharding plan as a file that people read and compare: plan.yaml."""

from pathlib import Path
from typing import Any

import yaml
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

from dlrm_app.files import write_text


def plan_to_dict(plan: ShardingPlan) -> dict[str, Any]:
    """Table name → how and where it is sharded; shards as [row, column, rows, columns, rank]."""
    tables: dict[str, Any] = {}
    for module_plan in plan.plan.values():
        assert isinstance(module_plan, EmbeddingModuleShardingPlan)
        for name, sharding in module_plan.items():
            shards = sharding.sharding_spec.shards if sharding.sharding_spec is not None else []
            tables[name] = {
                "sharding_type": sharding.sharding_type,
                "compute_kernel": sharding.compute_kernel,
                "ranks": list(sharding.ranks or []),
                "shards": [
                    [*shard.shard_offsets, *shard.shard_sizes, shard.placement.rank()] for shard in shards
                ],
            }
    return {"tables": tables}


def write_plan(path: Path, plan: ShardingPlan) -> None:
    """Writes ``plan`` to ``path``, whole or not at all."""
    text = yaml.safe_dump(plan_to_dict(plan), sort_keys=False, default_flow_style=None, width=120)
    write_text(path, "# table: how it is split; shards are [row, column, rows, columns, rank]\n" + text)
