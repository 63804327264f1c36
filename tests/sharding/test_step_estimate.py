"""A step's work: what torch's own counter and a count by hand say."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.config.train import ModelConfig
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.runs.events import PARTS
from dlrm_app.sharding.cluster import described_cluster
from dlrm_app.sharding.cost import Option
from dlrm_app.sharding.placement import Placed
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.sharding.step_estimate import Work, busiest_shares, described_machine, step_work
from dlrm_app.tables.specs import Table
from tests.sharding.clusters import cluster, workload

BATCH, NUM_DENSE, DIM = 64, 5, 8
TABLES = [Table(f"t_{index}", 100, DIM, (f"f_{index}",)) for index in range(6)]
CPU = torch.device("cpu")


def model_config(kind: str, **keys: object) -> ModelConfig:
    return ModelConfig(kind=kind, bottom_mlp=[32, DIM], top_mlp=[16, 1], ensemble_size=1, **keys)  # type: ignore[arg-type]


def build(config: ModelConfig) -> torch.nn.Module:
    return build_model(ModelSpec(config, TABLES, NUM_DENSE), CPU)


def placed(sharding_type: str, sizes: list[tuple[int, int]], ranks: tuple[int, ...]) -> Placed:
    none, offsets = np.zeros(len(sizes)), np.zeros((len(sizes), 2))
    memory = np.zeros((len(sizes), 4))
    return Placed(Option(sharding_type, "fused", None, np.array(sizes), offsets, none, memory, none), ranks)


def work_of(config: ModelConfig, ranks: int = 1, optimizer: str = "rowwise_adagrad") -> dict[str, Work]:
    """The work of a step under a plan that cuts every table's columns evenly over the ranks."""
    even = placed("column_wise", [(100, DIM // ranks)] * ranks, tuple(range(ranks)))
    plan = EstimatedPlan({}, cluster(ranks), {t.name: even for t in TABLES}, workload(TABLES, optimizer))
    return step_work(plan, build(config), config, BATCH, "adam")


@pytest.mark.parametrize(
    ("kind", "keys"), [("dlrm", {}), ("dcn", {"dcn_num_layers": 2, "dcn_low_rank_dim": 4})]
)
def test_the_flops_of_the_mlps_are_those_that_torch_counts(kind: str, keys: dict[str, int]) -> None:
    """Forward and backward, from data that needs no gradient."""
    config = model_config(kind, **keys)
    model, work = build(config), work_of(config)
    assert set(work) < set(PARTS)
    bottom, top = _linears(model.dense_arch), _linears(model.over_arch)
    dense = torch.randn(BATCH, NUM_DENSE)
    crossed = torch.randn(BATCH, top[0].in_features, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        outputs = bottom(dense), top(crossed)
    assert work["mlps"].flops == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        (outputs[0].sum() + outputs[1].sum()).backward()
    assert work["mlps_backward"].flops == counter.get_total_flops()


def _linears(module: object) -> torch.nn.Sequential:
    """The module's layers as torch's own, whose products it counts."""
    assert isinstance(module, torch.nn.Module)
    weights = [weight for weight in module.parameters() if weight.ndim == 2]
    return torch.nn.Sequential(*(torch.nn.Linear(w.shape[1], w.shape[0]) for w in weights))


def test_the_interaction_is_a_product_of_every_pair() -> None:
    work = work_of(model_config("dlrm"))
    vectors = torch.randn(BATCH, len(TABLES) + 1, DIM)
    pairs = [(a, b) for a in range(vectors.shape[1]) for b in range(a)]
    assert work["interaction"].flops == sum(2 * (vectors[:, a] * vectors[:, b]).numel() for a, b in pairs)


def test_ranks_share_lookups_and_send_what_is_not_their_own() -> None:
    config = model_config("dlrm")
    alone, shared = work_of(config), work_of(config, ranks=4)
    assert all(each.sent == 0 for each in alone.values())
    assert shared["lookup"].bytes == alone["lookup"].bytes / 4
    pooled = 4 * BATCH / 4 * len(TABLES) * DIM  # of one rank, before three quarters of it are sent
    assert shared["output_dist"].sent == 0.75 * pooled
    dense = sum(weight.numel() for name, weight in build(config).named_parameters() if "sparse" not in name)
    assert shared["gradient_exchange"].sent == 0.75 * (pooled + 2 * 4 * dense)


@pytest.mark.parametrize(
    ("sharding_type", "sizes", "ranks", "expected"),
    [
        ("table_wise", [(100, 8)], (1,), 1.0),  # that rank makes all vectors
        ("row_wise", [(25, 8)] * 4, (0, 1, 2, 3), 1.0),  # and here each rank a part of all
        ("column_wise", [(100, 2)] * 4, (0, 1, 2, 3), 0.25),
        ("data_parallel", [(100, 8)] * 4, (0, 1, 2, 3), 0.25),
    ],
)
def test_a_rank_with_some_of_the_rows_makes_vectors_of_all_samples(
    sharding_type: str, sizes: list[tuple[int, int]], ranks: tuple[int, ...], expected: float
) -> None:
    assert busiest_shares({"t_0": placed(sharding_type, sizes, ranks)}, TABLES[:1], 4)[1] == expected


def test_a_row_that_is_updated_is_read_and_written_with_its_state() -> None:
    config, kinds = model_config("dlrm"), ("sgd", "rowwise_adagrad", "adagrad")
    by_kind = {kind: work_of(config, optimizer=kind)["table_update"].bytes for kind in kinds}
    rows = BATCH * len(TABLES)
    assert by_kind["sgd"] == rows * (DIM * 4 + 2 * DIM * 4)  # its gradient, and the weights there and back
    assert by_kind["rowwise_adagrad"] - by_kind["sgd"] == rows * 2 * 4
    assert by_kind["adagrad"] - by_kind["sgd"] == rows * 2 * DIM * 4


def test_what_topology_gives_is_taken_and_what_it_leaves_open_is_the_planners_figure() -> None:
    config = TopologyConfig(2, 8, "cuda", 80, memory_gbps=2039, inter_node_gbps=25, bf16_tflops=100)
    machine = described_machine(config, described_cluster(config))
    assert (machine.memory, machine.exchange, machine.flops["bf16"]) == (2039e9, 25e9, 100e12)
    config = TopologyConfig(1, 8, "cuda", 80)
    found = described_cluster(config)
    machine = described_machine(config, found)
    assert machine.exchange == 1000 * found.bandwidths.intra_node
    assert machine.memory == 1000 * found.bandwidths.memory
