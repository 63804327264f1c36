"""Pooled embeddings sent through shared memory are torchrec's over gloo, to the bit, and so are their gradients."""

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.distributed.shared_memory.group import MachineGroup, machine_group
from dlrm_app.sharding.pooled_exchange import PooledExchange
from tests.ranks import on_ranks

WIDTHS, ROWS = [12, 0, 40], [5, 3, 7]
"""Columns and rows of each rank: none need be alike, and a rank may hold no table."""


def output_of(group: dist.ProcessGroup, size: int) -> TwPooledEmbeddingDist:
    return TwPooledEmbeddingDist(
        pg=group,
        dim_sum_per_rank=WIDTHS[-size:],
        emb_dim_per_rank_per_feature=[],
        callbacks=[lambda values: values * 2],
    )


def both_ways(output: TwPooledEmbeddingDist, runtime: Runtime, rows: list[int]) -> list[torch.Tensor]:
    """What arrives, and the gradient of a sum of its squares, of which each rank takes another multiple."""
    drawn = torch.Generator().manual_seed(runtime.rank)
    width = WIDTHS[-runtime.world_size :][runtime.rank]
    pooled = torch.randn(sum(rows), width, generator=drawn, requires_grad=True)
    context = EmbeddingShardingContext(batch_size_per_rank=rows)
    arrived = output(pooled, context).wait()
    ((runtime.rank + 1) * arrived.square()).sum().backward()
    assert pooled.grad is not None
    return [arrived.detach(), pooled.grad]


def on_rank(runtime: Runtime) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(torchrec's, ours), of two batches each; the second has rows alike."""
    size = runtime.world_size
    group = machine_group(runtime)
    assert isinstance(group, MachineGroup)
    world = dist.GroupMember.WORLD
    assert world is not None
    theirs, ours = output_of(world, size), output_of(group, size)
    ours._dist = PooledExchange(ours, group)
    batches = [ROWS[:size], [4] * size]
    return (
        [each for rows in batches for each in both_ways(theirs, runtime, rows)],
        [each for rows in batches for each in both_ways(ours, runtime, rows)],
    )


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_what_arrives_and_its_gradients_are_torchrecs(num_ranks: int) -> None:
    for theirs, ours in on_ranks(on_rank, num_ranks):
        assert all(torch.equal(one, other) for one, other in zip(theirs, ours, strict=True))
        assert ours[0].abs().sum() > 0
