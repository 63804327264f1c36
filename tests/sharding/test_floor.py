"""The floor of a step: a small plan by hand, and operations as torch counts them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dlrm_app.config.sharding import CollectivesConfig, TopologyConfig
from dlrm_app.config.train import ModelConfig
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.sharding.cluster import Cluster, described_cluster
from dlrm_app.sharding.cost import Option
from dlrm_app.sharding.floor import (
    DenseWork,
    DeviceRates,
    Floor,
    dense_work,
    described_rates,
    interaction_flops,
    matrix_flops,
    step_floor,
)
from dlrm_app.sharding.placement import Placed
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.tables.table import Table
from tests.sharding.clusters import cluster, workload

BATCH, NUM_DENSE, DIM = 64, 5, 8
TABLES = [Table(f"t_{index}", 100, DIM, (f"f_{index}",)) for index in range(6)]
CPU = torch.device("cpu")
FP32 = CollectivesConfig()
EACH_ITS_OWN = DeviceRates((1.0, 1.0, 1.0, 1.0), 1.0)
"""A byte and an operation a second: seconds are counts."""


def placed(
    sharding_type: str, sizes: list[tuple[int, int]], ranks: tuple[int, ...], kernel: str = "fused"
) -> Placed:
    none, offsets = np.zeros(len(sizes)), np.zeros((len(sizes), 2))
    memory = np.zeros((len(sizes), 4))
    return Placed(Option(sharding_type, kernel, None, np.array(sizes), offsets, none, memory, none), ranks)


def plan_of(
    tables: Sequence[tuple[Table, Placed]], on: Cluster, batch: int, optimizers: Mapping[str, str]
) -> EstimatedPlan:
    work = replace(workload([table for table, _ in tables], batch=batch), optimizers=optimizers)
    return EstimatedPlan({}, on, {table.name: place for table, place in tables}, work)


def floor_of(
    table: Table, place: Placed, on: Cluster, optimizer: str = "sgd", collectives: CollectivesConfig = FP32
) -> Mapping[str, float]:
    """Of a batch of 8 rows, without a dense part."""
    plan = plan_of([(table, place)], on, 8, {table.name: optimizer})
    return step_floor(plan, DenseWork(0, 0, 0), collectives, EACH_ITS_OWN).by_resource


def test_the_floor_of_two_tables_on_two_ranks_matches_a_count_by_hand() -> None:
    """A batch of 8: on rank 0 a table of 100 × 4 with an id a sample, on both half of 6 × 4 with two ids a sample."""
    whole = Table("whole", 100, 4, ("a",))
    cut = Table("cut", 6, 4, ("b",), pooling_factors=(2,))
    places = [
        (whole, placed("table_wise", [(100, 4)], (0,))),
        (cut, placed("row_wise", [(3, 4)] * 2, (0, 1))),
    ]
    dense = DenseWork(flops=1000, weight_bytes=40, update_bytes=280)
    plan = plan_of(places, cluster(2), 8, {"whole": "sgd", "cut": "adagrad"})
    of_whole = (
        8 * 8 + 8 * 3 * 16 + 2 * 8 * 16
    )  # ids; 8 rows read, read again and written; vectors and gradients
    of_cut = (
        8 * 8 + 3 * 3 * 16 + 3 * 2 * 16 + 2 * 8 * 16
    )  # half the lookups are here, in 3 rows, with their state
    memory = 280 + of_whole + of_cut
    sent = 2 * 4 * 16  # to the other rank, and gradients back: the vectors of its 4 samples, or these in part
    within = 2 * sent + 2 * 40 / 2  # and the dense gradients, half there and half back
    floor = step_floor(plan, dense, FP32, DeviceRates((100.0, 1.0, 10.0, 1.0), 50.0))
    assert floor == Floor(
        {"memory": memory / 100, "exchange within a node": within / 10, "arithmetic": 1000 / 50}
    )
    assert (floor.seconds, floor.limit) == (within / 10, "exchange within a node")


ON_NODES = cluster(8, nodes=2)


@pytest.mark.parametrize(
    ("place", "within", "between"),
    [
        # 16 bytes of one sample on each rank, there and back: to 3 ranks here, to 4 there
        (placed("table_wise", [(64, 4)], (5,)), 2 * 3 * 16, 2 * 4 * 16),
        (placed("column_wise", [(64, 2)] * 2, (0, 4)), 2 * 3 * 8, 2 * 4 * 8),
        # added up within the node: 3/4 of what all 8 ranks get; then a quarter of what the other node gets
        (placed("row_wise", [(8, 4)] * 8, tuple(range(8))), 2 * 0.75 * 8 * 16, 2 * 16),
        (placed("table_row_wise", [(16, 4)] * 4, (0, 1, 2, 3)), 2 * 0.75 * 8 * 16, 2 * 16),
        # the gradient of the whole table, added up within nodes, a quarter of it between these, and back
        (
            placed("data_parallel", [(64, 4)] * 8, tuple(range(8)), "dense"),
            2 * 0.75 * 1024,
            2 * 0.5 * 1024 / 4,
        ),
    ],
)
def test_bytes_within_and_between_nodes_by_hand(place: Placed, within: float, between: float) -> None:
    found = floor_of(Table("t", 64, 4, ("f",)), place, ON_NODES)
    assert found["exchange within a node"] == within
    assert found["exchange between nodes"] == between


def test_exchanges_in_16_bits_send_half() -> None:
    place = placed("table_wise", [(100, DIM)], (0,))
    full, half = (
        floor_of(TABLES[0], place, cluster(2), collectives=CollectivesConfig(kind, kind))
        for kind in ("fp32", "bf16")
    )
    assert half["exchange within a node"] == full["exchange within a node"] / 2
    assert half["memory"] == full["memory"]


def test_an_updated_row_is_read_and_written_with_its_state() -> None:
    found = {
        kind: floor_of(TABLES[0], placed("table_wise", [(100, DIM)], (0,)), cluster(1), optimizer=kind)
        for kind in ("sgd", "rowwise_adagrad", "adagrad")
    }
    memory = {kind: each["memory"] for kind, each in found.items()}
    assert memory["rowwise_adagrad"] - memory["sgd"] == 8 * 2 * 4
    assert memory["adagrad"] - memory["sgd"] == 8 * 2 * 4 * DIM


def test_a_table_of_the_host_has_its_rows_read_there() -> None:
    here, there = (
        floor_of(TABLES[0], placed("table_wise", [(100, DIM)], (0,), kernel), cluster(1))
        for kernel in ("fused", "fused_uvm")
    )
    assert there["host memory"] == 3 * 8 * DIM * 4
    assert here["memory"] == there["memory"] + there["host memory"]


def test_the_dense_kernel_updates_every_row() -> None:
    found = floor_of(TABLES[0], placed("table_wise", [(100, DIM)], (0,), "dense"), cluster(1))
    ids_and_vectors, row = 8 * 8 + 2 * 8 * 4 * DIM, 4 * DIM
    assert found["memory"] == ids_and_vectors + 8 * row + 3 * 100 * row


def model_config(kind: str, **keys: object) -> ModelConfig:
    layers = {"bottom_mlp": [32, DIM], "top_mlp": [16, 1]}
    return ModelConfig(kind=kind, ensemble_size=1, **layers, **keys)  # type: ignore[arg-type]


def build(config: ModelConfig) -> torch.nn.Module:
    return build_model(ModelSpec(config, TABLES, NUM_DENSE), CPU)


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "keys"), [("dlrm", {}), ("dcn", {"dcn_num_layers": 2, "dcn_low_rank_dim": 4})]
)
def test_operations_of_matrices_match_torchs_count(kind: str, keys: dict[str, int]) -> None:
    """Forward and backward, from data that needs no gradient. torch does not count this project's own products."""
    weights = {
        name: shape
        for name, shape in shapes_of(build(model_config(kind, **keys))).items()
        if "sparse_arch" not in name
    }
    forward, first = matrix_flops(weights, BATCH)
    layers = {name: torch.nn.Linear(shape[1], shape[0]) for name, shape in weights.items() if len(shape) == 2}
    with FlopCounterMode(display=False) as counter:
        outputs = [
            layer(
                torch.randn(
                    BATCH, layer.in_features, requires_grad=name != "dense_arch.model._mlp.0._linear.weight"
                )
            )
            for name, layer in layers.items()
        ]
    assert forward == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        torch.stack([output.sum() for output in outputs]).sum().backward()
    assert 2 * forward - first == counter.get_total_flops()


def test_the_interaction_is_a_product_of_every_pair() -> None:
    vectors = torch.randn(BATCH, len(TABLES) + 1, DIM)
    pairs = [(a, b) for a in range(vectors.shape[1]) for b in range(a)]
    expected = sum(2 * (vectors[:, a] * vectors[:, b]).numel() for a, b in pairs)
    assert interaction_flops(model_config("dlrm"), TABLES, BATCH) == expected


def test_the_dense_optimizer_reads_and_writes_its_state() -> None:
    config = model_config("dlrm")
    weights = shapes_of(build(config))
    size = 4 * sum(int(np.prod(shape)) for name, shape in weights.items() if "sparse" not in name)
    sgd, adam = (dense_work(weights, config, TABLES, BATCH, kind) for kind in ("sgd", "adam"))
    assert (sgd.weight_bytes, sgd.update_bytes, adam.update_bytes) == (size, 3 * size, 7 * size)


def test_rates_are_the_topologys_and_no_peak_is_guessed() -> None:
    config = TopologyConfig(2, 8, "cuda", 80, memory_gbps=2039, inter_node_gbps=25, bf16_tflops=100)
    found = described_cluster(config)
    rates = described_rates(config, found, "bf16", tf32=False)
    within = 1000 * found.bandwidths.intra_node
    assert rates == DeviceRates((2039e9, 1000 * found.bandwidths.host_link, within, 25e9), 100e12)
    assert described_rates(config, found, "fp32", tf32=True).flops == 100e12
    assert described_rates(config, found, "fp32", tf32=False).flops is None
    plan = plan_of([(TABLES[0], placed("table_wise", [(100, DIM)], (0,)))], cluster(1), 8, {"t_0": "sgd"})
    floor = step_floor(plan, DenseWork(1e9, 0, 0), FP32, replace(rates, flops=None))
    assert list(floor.by_resource) == ["memory"]
