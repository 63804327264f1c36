"""What a described rank is taken to do: the figures of its cluster, which the planner goes by too."""

import pytest

from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.sharding.cluster import described_cluster
from dlrm_app.sharding.estimate.machine import Machine, described_machine
from dlrm_app.sharding.estimate.work import Loaded


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


@pytest.mark.parametrize(
    ("device", "loader_rows", "waited"),
    [
        ("cpu", 1e5, 10.0 + 20.0),  # the cores that read are those of the step
        ("cuda", 1e5, 30.0 - 25.0),  # the step is done before the next batch
        ("cuda", 1e6, 0.0),  # the next batch is there before
    ],
)
def test_a_loader_takes_the_steps_cores_or_works_beside_it(
    device: str, loader_rows: float, waited: float
) -> None:
    machine = Machine({}, 1.0, 1.0, device=device, loader_rows=loader_rows, loader_ids=2e6)
    parts = {"mlps": 20.0, "lookup": 5.0}
    what = Loaded(rows=1000, ids=40_000)
    whole = machine.beside_loader(parts, what)
    assert whole == {**parts, "data": pytest.approx(waited)}
    read = machine.loader_ms(what)
    assert sum(whole.values()) == pytest.approx(25 + read if device == "cpu" else max(25, read))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_loader_that_nobody_measured_has_a_rate(device: str) -> None:
    config = TopologyConfig(1, 1, device, 80)
    nobody = described_machine(config, described_cluster(config))
    assert nobody.loader_ms(Loaded(1000, 0)) > 0
    assert nobody.loader_ms(Loaded(0, 1000)) > 0
    config = TopologyConfig(1, 1, device, 80, loader_rows_per_second=1e6, loader_ids_per_second=4e6)
    given = described_machine(config, described_cluster(config))
    assert given.loader_ms(Loaded(1000, 8000)) == pytest.approx(1.0 + 2.0)
