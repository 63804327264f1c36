"""Estimates the time of a training step: the work of each part (arithmetic, bytes of memory, bytes sent to other ranks), and the
rates of a machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from dlrm_app.config.optimizer import DENSE_STATES
from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.config.train import ModelConfig
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.placement import Assignment, imbalance
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.specs import BYTES_PER_WEIGHT, Table

VALUE, INDEX = 4, 8
"""Bytes of an activation and of an id."""
PARTS_OF = {"dense_arch": "mlps", "over_arch": "mlps", "inter_arch": "interaction"}
"""Module of a model → the part of a step that its matrix products belong to."""


@dataclass(frozen=True)
class Work:
    """Work of one part of a step, on the rank with the most of it."""

    flops: float = 0.0
    bytes: float = 0.0
    sent: float = 0.0


def busiest_shares(assignment: Assignment, tables: Sequence[Table], num_ranks: int) -> tuple[float, float]:
    """The busiest rank's share of all looked-up bytes, and the largest rank's pooled bytes over those of one full output.

    Assumes that all rows are looked up equally often. A rank with some of a table's rows makes a vector for every sample, which
    is added to those of other ranks; so tables cut by rows send as many times more vectors as there are ranks.
    """
    looked_up, pooled = np.zeros((2, num_ranks))
    for table in tables:
        placed = assignment[table.name]
        ranks, sizes = np.array(placed.ranks), placed.option.sizes
        weights = sizes.prod(1).astype(float)
        np.add.at(looked_up, ranks, sum(table.expected_pooling_factors) * table.dim * weights / weights.sum())
        samples = 1 / num_ranks if placed.option.sharding_type == "data_parallel" else 1.0
        np.add.at(pooled, ranks, samples * len(table.features) * sizes[:, 1])
    all_pooled = sum(table.dim * len(table.features) for table in tables)
    return imbalance(looked_up) / num_ranks, float(pooled.max()) / all_pooled


def step_work(
    plan: EstimatedPlan, model: nn.Module, config: ModelConfig, global_batch_size: int, dense_optimizer: str
) -> dict[str, Work]:
    """Part → its work in a step. ``model``: gives the shapes of the dense part's weights; its tables are not used."""
    ranks, tables = plan.cluster.num_ranks, list(plan.work.tables.values())
    # share: the busiest rank's share of all lookups; made: pooled vectors that a rank makes, whole or in part, over all
    share, made = busiest_shares(plan.assignment, tables, ranks)
    batch = global_batch_size // ranks
    rows = batch * config.ensemble_size
    everywhere = rows * ranks
    away = (ranks - 1) / ranks
    ids = sum(sum(table.expected_pooling_factors) for table in tables)
    pooled = sum(table.dim * len(table.features) for table in tables) * VALUE
    read = sum(sum(t.expected_pooling_factors) * t.dim * BYTES_PER_WEIGHT[t.data_type] for t in tables)
    state = 0.0
    for t in tables:
        of_row = SPARSE_OPTIMIZERS[plan.work.optimizers[t.name]].state_bytes(np.array(1), np.array(t.dim))
        state += sum(t.expected_pooling_factors) * float(np.sum(of_row))
    products, first = _products(model, batch)
    mlps, crossing = products["mlps"], products["interaction"]
    meeting = _interaction(config, tables, batch)
    interaction = Work(meeting.flops + crossing.flops, meeting.bytes + crossing.bytes)
    dense = VALUE * sum(w.numel() for name, w in model.named_parameters() if "sparse_arch" not in name)
    # reads weight and gradient, writes the weight; reads and writes each state
    passes = 3 + 2 * DENSE_STATES[dense_optimizer]
    return {
        "input_dist": Work(bytes=2 * rows * ids * INDEX, sent=rows * ids * INDEX * away),
        "lookup": Work(bytes=everywhere * (share * (ids * INDEX + read) + made * pooled)),
        "output_dist": Work(sent=everywhere * made * pooled * away),
        "mlps": mlps,
        "interaction": interaction,
        "mlps_backward": Work(2 * mlps.flops - first, 2 * mlps.bytes),
        "interaction_backward": Work(2 * interaction.flops, 2 * interaction.bytes),
        "gradient_exchange": Work(sent=(everywhere * made * pooled + 2 * dense) * away),
        "table_update": Work(bytes=everywhere * (made * pooled + 2 * share * (read + state))),
        "optimizer": Work(bytes=dense * passes),
    }


def _products(model: nn.Module, batch: int) -> tuple[dict[str, Work], float]:
    """Part → the work of its weight matrices; and the flops of first layers, whose input needs no gradient."""
    flops, moved, first, begun = Counter[str](), Counter[str](), 0.0, set()
    for name, weight in model.named_parameters():
        module = next((piece for piece in name.split(".") if piece in PARTS_OF), None)
        if module is None or weight.ndim < 2:
            continue
        inputs = weight.shape[-1]
        outputs = weight.numel() // inputs
        flops[PARTS_OF[module]] += 2 * batch * inputs * outputs
        moved[PARTS_OF[module]] += VALUE * (batch * (inputs + outputs) + inputs * outputs)
        member = name.partition("dense_arch")[0]
        if module == "dense_arch" and member not in begun:
            begun.add(member)
            first += 2 * batch * inputs * outputs
    return {part: Work(float(flops[part]), moved[part]) for part in ("mlps", "interaction")}, first


def _interaction(model: ModelConfig, tables: Sequence[Table], batch: int) -> Work:
    """Work of the interaction of features, without the interaction's own weights."""
    together = sum(table.dim * len(table.features) for table in tables)
    vectors = 1 + sum(len(table.features) for table in tables)
    width = tables[0].dim // model.ensemble_size
    if model.kind == "dlrm":
        pairs = vectors * (vectors - 1) / 2
    elif model.kind == "projection":
        assert model.projection_branch1 is not None
        assert model.projection_branch2 is not None
        pairs = model.projection_branch1[-1] * model.projection_branch2[-1]
    else:
        return Work(bytes=2.0 * VALUE * batch * together)
    rows = batch * model.ensemble_size
    return Work(2.0 * rows * pairs * width, VALUE * rows * (vectors * width + pairs))


EFFICIENCY = 0.5
"""Efficiency of a part that was not measured: half of the rates that products and memory reach on large blocks."""
FIXED_MS = {"cpu": 0.3, "cuda": 0.1}
"""Milliseconds that a part takes even without rows: calls and kernel launches."""


@dataclass(frozen=True)
class Machine:
    """The rates of a rank: flops a second by precision; bytes a second of ``memory`` and of ``exchange`` with other nodes.

    efficiency: part → least time over measured time, without the fixed time. fixed_ms: part → milliseconds in every step.
    """

    flops: Mapping[str, float]
    memory: float
    exchange: float
    efficiency: Mapping[str, float] = field(default_factory=dict)
    fixed_ms: Mapping[str, float] = field(default_factory=dict)
    device: str = "cpu"

    def floors_ms(self, work: Mapping[str, Work], precision: str) -> dict[str, float]:
        """Part → its least milliseconds: the longer of products and memory, plus sending."""
        flops = self.flops.get(precision, self.flops["fp32"])
        return {
            part: 1000 * (max(each.flops / flops, each.bytes / self.memory) + each.sent / self.exchange)
            for part, each in work.items()
        }

    def estimate_ms(self, work: Mapping[str, Work], precision: str) -> dict[str, float]:
        """Part → estimated milliseconds of a step, parts with only fixed time included."""
        fixed = FIXED_MS[self.device]
        times = {
            part: self.fixed_ms.get(part, fixed) + floor / self.efficiency.get(part, EFFICIENCY)
            for part, floor in self.floors_ms(work, precision).items()
        }
        return times | {part: ms for part, ms in self.fixed_ms.items() if part not in work}


DATASHEETS = {"cuda": (19.5, 312), "cpu": (0.1, 0.1)}
"""Default fp32 and bf16 teraflops a second, used if topology gives none: an A100's, and two AVX2 cores'."""


def described_machine(config: TopologyConfig, cluster: Cluster) -> Machine:
    """The rates of a rank of ``cluster``, which ``config`` describes."""
    fp32, bf16 = DATASHEETS[cluster.device]
    speed = cluster.bandwidths
    return Machine(
        flops={
            "fp32": 1e12 * (config.fp32_tflops or fp32),
            "bf16": 1e12 * (config.bf16_tflops or bf16),
        },
        memory=1000 * speed.memory,
        exchange=1000 * (speed.intra_node if cluster.nodes == 1 else speed.inter_node),
        efficiency=config.efficiency,
        fixed_ms=config.fixed_ms,
        device=cluster.device,
    )
