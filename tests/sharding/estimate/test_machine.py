"""What a described rank is taken to do: the figures of its cluster, which the planner goes by too."""

import pytest

from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.sharding.cluster import described_cluster
from dlrm_app.sharding.estimate.machine import described_machine


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("nodes", "link"), [(1, "intra_node"), (2, "inter_node")])
def test_what_topology_leaves_open_is_the_planners_figure(device: str, nodes: int, link: str) -> None:
    config = TopologyConfig(nodes=nodes, devices_per_node=8, device=device, memory_gib=80)
    cluster = described_cluster(config)
    machine = described_machine(config, cluster)
    assert machine.exchange == 1000 * getattr(cluster.bandwidths, link)
    assert machine.memory == 1000 * cluster.bandwidths.memory


def test_what_topology_gives_is_taken() -> None:
    config = TopologyConfig(2, 8, "cuda", 80, memory_gbps=2039, inter_node_gbps=25, bf16_tflops=100)
    machine = described_machine(config, described_cluster(config))
    assert (machine.memory, machine.exchange, machine.flops["bf16"]) == (2039e9, 25e9, 100e12)
