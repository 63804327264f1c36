"""Described clusters, and the ranks that were started."""

from dataclasses import replace

import pytest
import torch
from torchrec.distributed.planner import constants
from torchrec.distributed.planner.types import CollectiveType

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import GIB, Bandwidths, described_cluster, running_cluster
from dlrm_app.sharding.cost import estimate_options
from dlrm_app.sharding.exchange import NodeBandwidths
from dlrm_app.sharding.search import search
from tests.composed import compose_config
from tests.sharding.clusters import cluster, one_hot, workload

COMMON = ["tables=criteo_kaggle", "tables.embedding_dim=16"]


def started(ranks: int, per_node: int | None = None) -> Runtime:
    return Runtime(0, 0, ranks, per_node or ranks, "cpu", 1)


@pytest.mark.parametrize(
    ("name", "nodes", "per_node", "device", "gib"),
    [
        ("a100_40g_8", 1, 8, "cuda", 40),
        ("a100_80g", 1, 8, "cuda", 80),
        ("a100_80g_8", 1, 8, "cuda", 80),
        ("h100_8x16", 16, 8, "cuda", 80),
        ("cpu_2", 1, 2, "cpu", 8),
    ],
)
def test_the_shipped_clusters_are_what_their_names_say(
    name: str, nodes: int, per_node: int, device: str, gib: int
) -> None:
    found = described_cluster(compose_config("plan", PlanConfig, [*COMMON, f"topology={name}"]).topology)
    assert (found.nodes, found.devices_per_node, found.device) == (nodes, per_node, device)
    assert found.memory == gib * GIB
    assert found.usable == pytest.approx(0.85 * gib * GIB)


def test_bandwidths_that_nobody_gives_are_torchrecs() -> None:
    assert Bandwidths() == Bandwidths(
        constants.HBM_MEM_BW,
        constants.DDR_MEM_BW,
        constants.HBM_TO_DDR_MEM_BW,
        constants.INTRA_NODE_BANDWIDTH,
        constants.CROSS_NODE_BANDWIDTH,
    )


def test_torchrec_gets_the_memory_left_for_tables() -> None:
    """Memory without the reserved share, and bandwidths in its unit, bytes a millisecond."""
    overrides = [*COMMON, "topology=a100_80g", "topology.nodes=2", "topology.reserved_share=0.5"]
    topology = described_cluster(compose_config("plan", PlanConfig, overrides).topology).to_torchrec()
    assert topology.world_size == 16
    assert topology.local_world_size == 8
    assert topology.devices[15].storage.hbm == 40 * GIB
    assert topology.devices[15].storage.ddr == 128 * GIB
    assert topology.hbm_mem_bw == 2039e6
    assert topology.inter_host_bw == 25e6


def test_missing_settings_of_a_custom_cluster_are_named() -> None:
    config = compose_config("plan", PlanConfig, [*COMMON, "topology=custom", "topology.device=cpu"])
    assert list(map(str, config.problems())) == [
        "topology describes a cluster in part: give topology.devices_per_node, topology.memory_gib too, "
        "or choose one, as topology=a100_80g_8"
    ]


def test_an_undescribed_cluster_is_one_rank_of_this_machine() -> None:
    one = running_cluster(TopologyConfig(), started(1))
    four = running_cluster(TopologyConfig(), started(4))
    assert (four.nodes, four.devices_per_node, four.device) == (1, 4, "cpu")
    assert four.memory == one.memory // 4
    assert running_cluster(TopologyConfig(), started(8, 2)).nodes == 4


def test_given_memory_replaces_the_machines() -> None:
    assert running_cluster(TopologyConfig(memory_gib=3), started(2)).memory == 3 * GIB


def test_processes_on_cpu_are_not_taken_to_exchange_as_gpus_do() -> None:
    """Else the planner would split every table, which costs two CPU ranks a fifth of their speed and more."""
    found = running_cluster(TopologyConfig(), started(2))
    tables = [one_hot(1000, 16, f"t{i}") for i in range(4)]
    plan = search(estimate_options(workload(tables, batch=1024), found), found)
    assert plan is not None
    assert {placed.option.sharding_type for placed in plan.values()} == {"table_wise"}
    assert running_cluster(TopologyConfig(intra_node_gbps=600), started(2)).bandwidths.intra_node == 600e6


def test_a_described_cluster_that_was_not_started_is_refused() -> None:
    described = TopologyConfig(nodes=2, devices_per_node=8, device="cuda", memory_gib=80)
    with pytest.raises(ConfigError) as error:
        running_cluster(described, started(4))
    assert "topology describes 2 × 8 cuda ranks, but 1 × 4 cpu ranks were started" in str(error.value)
    assert "torchrun --nnodes 2 --nproc-per-node 8" in str(error.value)


def test_a_described_and_started_cluster_is_planned_for() -> None:
    described = TopologyConfig(nodes=1, devices_per_node=2, device="cpu", memory_gib=5)
    assert running_cluster(described, started(2)).memory == 5 * GIB


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nodes": 0}, "topology.nodes must be at least 1"),
        ({"device": "tpu"}, "topology.device must be one of cuda, cpu"),
        ({"memory_gib": -1.0}, "topology.memory_gib must be above 0 and at most 1073741824, got -1.0"),
        ({"reserved_share": 1.0}, "must be at least 0 and below 1, got 1.0"),
        ({"memory_gib": None}, "give topology.memory_gib too"),
    ],
)
def test_clusters_that_cannot_be_are_refused(change: dict[str, object], problem: str) -> None:
    described = {"nodes": 1, "devices_per_node": 2, "device": "cpu", "memory_gib": 5.0, **change}
    (found,) = TopologyConfig(**described).problems("topology.")  # type: ignore[arg-type]
    assert problem in str(found)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, free: int, reserved: int = 0, allocated: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda gpu: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda gpu: allocated)


def test_plans_are_for_the_free_memory_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A change of a few MiB between starts is ignored, because another plan would end the resume's exactness."""
    ranks = Runtime(0, 0, 8, 8, "cuda", 1)
    sizes = []
    for noise in (0, 5 << 20):
        pretend_gpu(monkeypatch, free=20 * GIB + (100 << 20) + noise)
        sizes.append(running_cluster(TopologyConfig(), ranks).memory)
    assert sizes == [20 * GIB] * 2
    assert "cuda:0 has 20.1 of its 80.0 GiB free" in caplog.text


def test_memory_that_this_process_s_allocator_keeps_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, free=70 * GIB, reserved=9 * GIB, allocated=GIB)
    assert running_cluster(TopologyConfig(), Runtime(0, 0, 1, 1, "cuda", 1)).memory == 78 * GIB


def test_messages_within_a_node_have_the_nodes_rate() -> None:
    """Of an all-to-all on two nodes half the bytes; of a collective on one node all of them."""
    rates = NodeBandwidths(inter_host_bw=10.0, intra_host_bw=100.0)
    for kind in CollectiveType:
        assert rates.get_bw(8, 8, kind) == rates.get_bw(8, 4, kind) == 100.0
    seconds = 1 / rates.get_bw(8, 16, CollectiveType.ALL_TO_ALL)
    assert seconds == pytest.approx(0.5 / 100 + 0.5 / 10)
    assert rates.get_bw(1, 16, CollectiveType.ALL_TO_ALL) == pytest.approx(10.0, rel=0.07)


def test_the_network_does_not_matter_within_a_node() -> None:
    """Whatever the sharding type, replicated tables included."""
    types = ["table_wise", "row_wise", "column_wise", "data_parallel"]
    tables = [one_hot(1000, 64, "small"), one_hot(100_000, 64, "large")]
    slow, fast = (
        replace(cluster(8), bandwidths=replace(Bandwidths(), inter_node=speed)) for speed in (1e3, 1e9)
    )
    times = [
        {
            (name, option.label): option.total_time
            for name, options in estimate_options(workload(tables, types=types), where).items()
            for option in options
        }
        for where in (slow, fast)
    ]
    assert len(times[0]) == 8
    assert times[0] == times[1]
