"""torchrec builds what plans say on 8, 16 and 128 GPUs: every sharding type, and the plans of the recipes."""

import pytest

from dlrm_app.cli.process import quiet_libraries
from dlrm_app.config.like_train import PlanConfig
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.sharding.sharder import fused_kernels
from tests.cuda_without_gpu.fake_ranks import compose_plan, fake_rank, make_plan, shard_on_meta

TYPES = [*((kind, 1) for kind in ("table_wise", "row_wise", "column_wise"))]
TYPES += [(kind, 2) for kind in ("table_column_wise", "table_row_wise", "grid_shard")]  # which know of nodes
LARGE = pytest.mark.long
ON_8, ON_128 = ["topology=a100_80g_8"], ["topology=h100_8x16"]
RECIPES = [
    pytest.param("merlin=tiny", ON_8),
    pytest.param("merlin=small", ON_8, marks=LARGE),
    pytest.param("merlin=medium", ON_8, marks=LARGE),
    pytest.param("merlin=large", ON_128, marks=LARGE),
    pytest.param("merlin=jumbo", ON_128, marks=LARGE),
    pytest.param("merlin=colossal", [*ON_128, "topology.nodes=128"], marks=LARGE),
    pytest.param("experiment=mlperf_dcnv2", ON_8),
    pytest.param("experiment=mlperf_dlrm_v1", ON_8),
]


def planned_weights(plan: EstimatedPlan, rank: int) -> list[int]:
    """Rows times columns of each fused shard that the plan gives to ``rank``."""
    return sorted(
        int(rows) * int(columns)
        for placed in plan.assignment.values()
        if placed.option.kernel != "dense"
        for (rows, columns), owner in zip(placed.option.sizes, placed.ranks, strict=True)
        if owner == rank and rows
    )


def assert_builds(config: PlanConfig) -> None:
    """The first rank and the last hold what the plan gives them."""
    quiet_libraries()
    plan = make_plan(config)
    for rank in (0, plan.cluster.num_ranks - 1):
        with fake_rank(rank, plan.cluster):
            kernels = list(fused_kernels(shard_on_meta(config, plan)))
        specs = [spec for kernel in kernels for spec in kernel.embedding_specs]
        assert sorted(spec[0] * spec[1] for spec in specs if spec[0]) == planned_weights(plan, rank)


@pytest.mark.parametrize(("kind", "nodes"), TYPES)
def test_every_sharding_type(kind: str, nodes: int) -> None:
    topology = ["topology=a100_80g_8", f"topology.nodes={nodes}"]
    assert_builds(compose_plan("tables=criteo_kaggle", f"sharding.types=[{kind}]", *topology))


@pytest.mark.parametrize(("recipe", "topology"), RECIPES)
def test_the_plans_of_recipes(recipe: str, topology: list[str]) -> None:
    assert_builds(compose_plan(recipe, *topology))
