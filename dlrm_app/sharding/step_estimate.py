"""Estimates a training step: its work part by part (arithmetic, bytes of memory touched, bytes sent to other ranks), and the
rates at which a machine does that.

Shapes: B a rank's rows, F sparse features, V vectors that meet (F and the dense one), D embedding width.
"""

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


@dataclass(frozen=True)
class Work:
    """Work of one part, on the rank that has most of it."""

    flops: float = 0.0
    bytes: float = 0.0
    sent: float = 0.0


@dataclass(frozen=True)
class Matrix:
    """A weight matrix that every row is multiplied with, in ``part`` of the forward pass."""

    part: str
    inputs: int
    outputs: int
    is_first: bool = False
    """Its input is data, which needs no gradient."""


@dataclass(frozen=True)
class StepShape:
    """The quantities that a step's work depends on.

    batch: rows of a rank, of each model of an ensemble. lookup_share: of all lookups, by bytes, the busiest rank's;
    pooled_share: of all pooled vectors, those that the busiest rank makes, whole or in part.
    """

    batch: int
    num_ranks: int
    matrices: Sequence[Matrix]
    num_dense_weights: int
    tables: Sequence[Table]
    optimizers: dict[str, str]
    dense_optimizer: str
    model: ModelConfig
    lookup_share: float
    pooled_share: float


def matrices_of(model: nn.Module) -> list[Matrix]:
    """Every weight with two dimensions or more outside the tables."""
    parts = {"dense_arch": "mlps", "over_arch": "mlps", "inter_arch": "interaction"}
    matrices, begun = [], set()
    for name, weight in model.named_parameters():
        pieces = name.split(".")
        part = next((parts[piece] for piece in pieces if piece in parts), None)
        if part is not None and weight.ndim >= 2:
            bottom = name.partition("dense_arch")[0] if "dense_arch" in pieces else None
            inputs = weight.shape[-1]
            outputs = weight.numel() // inputs
            matrices.append(Matrix(part, inputs, outputs, bottom is not None and bottom not in begun))
            begun.add(bottom)
    return matrices


def busiest_shares(assignment: Assignment, tables: Sequence[Table], num_ranks: int) -> tuple[float, float]:
    """The busiest rank's share of what is looked up, and its pooled vectors over all of them; both by bytes.

    Rows are taken to be asked for alike. A rank with some of a table's rows makes a vector for every sample, which is added
    to those of the other ranks: cut by rows, tables have as many times more vectors to send as there are ranks.
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


def step_work(shape: StepShape) -> dict[str, Work]:
    """Part → its work; parts without any are left out."""
    batch, ranks, share, made = shape.batch, shape.num_ranks, shape.lookup_share, shape.pooled_share
    rows = batch * shape.model.ensemble_size
    everywhere = rows * ranks
    away = (ranks - 1) / ranks
    ids = sum(sum(table.expected_pooling_factors) for table in shape.tables)
    pooled = sum(table.dim * len(table.features) for table in shape.tables) * VALUE
    read = sum(sum(t.expected_pooling_factors) * t.dim * BYTES_PER_WEIGHT[t.data_type] for t in shape.tables)
    state = sum(
        sum(table.expected_pooling_factors) * _state_bytes(shape.optimizers[table.name], table.dim)
        for table in shape.tables
    )
    meeting = _interaction(shape)
    mlps, first = _products(shape, "mlps")
    crossing, _ = _products(shape, "interaction")
    dense = shape.num_dense_weights * VALUE
    # weight and gradient are read and the weight written, each state both
    passes = 3 + 2 * DENSE_STATES[shape.dense_optimizer]
    return {
        "input_dist": Work(bytes=2 * rows * ids * INDEX, sent=rows * ids * INDEX * away),
        "lookup": Work(bytes=everywhere * (share * (ids * INDEX + read) + made * pooled)),
        "output_dist": Work(sent=everywhere * made * pooled * away),
        "mlps": mlps,
        "interaction": Work(meeting.flops + crossing.flops, meeting.bytes + crossing.bytes),
        "mlps_backward": Work(2 * mlps.flops - first, 2 * mlps.bytes),
        "interaction_backward": Work(
            2 * (meeting.flops + crossing.flops), 2 * (meeting.bytes + crossing.bytes)
        ),
        "gradient_exchange": Work(sent=(everywhere * made * pooled + 2 * dense) * away),
        "table_update": Work(bytes=everywhere * (made * pooled + 2 * share * (read + state))),
        "optimizer": Work(bytes=dense * passes),
    }


def _state_bytes(kind: str, dim: int) -> float:
    per_weight, per_row = SPARSE_OPTIMIZERS[kind].state_bytes(np.array([1]), np.array([dim]))
    return float(np.sum(per_weight) + np.sum(per_row))


def _products(shape: StepShape, part: str) -> tuple[Work, float]:
    """The work of the matrices of ``part``, and the flops of those whose input needs no gradient."""
    matrices = [matrix for matrix in shape.matrices if matrix.part == part]
    flops = [2.0 * shape.batch * matrix.inputs * matrix.outputs for matrix in matrices]
    moved = sum(
        VALUE * (shape.batch * (matrix.inputs + matrix.outputs) + matrix.inputs * matrix.outputs)
        for matrix in matrices
    )
    first = sum(each for each, matrix in zip(flops, matrices, strict=True) if matrix.is_first)
    return Work(sum(flops), moved), first


def _interaction(shape: StepShape) -> Work:
    """Work of features with each other, without the interaction's own weights."""
    model, batch, count = shape.model, shape.batch, shape.model.ensemble_size
    vectors = 1 + sum(len(table.features) for table in shape.tables)
    width = shape.tables[0].dim // count
    together = sum(table.dim * len(table.features) for table in shape.tables)
    if model.kind == "dlrm":
        pairs = vectors * (vectors - 1) / 2
    elif model.kind == "projection":
        assert model.projection_branch1 is not None
        assert model.projection_branch2 is not None
        pairs = model.projection_branch1[-1] * model.projection_branch2[-1]
    else:
        return Work(bytes=2.0 * VALUE * batch * together)
    flops = 2.0 * batch * count * pairs * width
    return Work(flops, VALUE * batch * count * (vectors * width + pairs))


def step_shape(
    plan: EstimatedPlan, model: nn.Module, config: ModelConfig, global_batch_size: int, dense_optimizer: str
) -> StepShape:
    """The shape of a step of ``model``, which has the dense part's weights; its tables are not looked at."""
    num_ranks = plan.cluster.num_ranks
    tables = list(plan.work.tables.values())
    lookup_share, pooled_share = busiest_shares(plan.assignment, tables, num_ranks)
    dense = [weight.numel() for name, weight in model.named_parameters() if "sparse_arch" not in name]
    return StepShape(
        batch=global_batch_size // num_ranks,
        num_ranks=num_ranks,
        matrices=matrices_of(model),
        num_dense_weights=sum(dense),
        tables=tables,
        optimizers=dict(plan.work.optimizers),
        dense_optimizer=dense_optimizer,
        model=config,
        lookup_share=lookup_share,
        pooled_share=pooled_share,
    )


EFFICIENCY = 0.5
"""Of a part that was not measured: half of what products and memory reach on large blocks."""
FIXED_MS = {"cpu": 0.3, "cuda": 0.1}
"""Milliseconds that a part takes for no rows at all: calls, and kernels to start."""


@dataclass(frozen=True)
class Machine:
    """A rank: flops by precision and bytes, a second; ``exchange``: bytes a second to each other rank's node.

    efficiency: part → floor over measured time, without the fixed part. fixed_ms: part → milliseconds of any step.
    """

    flops: Mapping[str, float]
    memory: float
    exchange: float
    efficiency: Mapping[str, float] = field(default_factory=dict)
    fixed_ms: Mapping[str, float] = field(default_factory=dict)
    device: str = "cpu"

    def floors_ms(self, work: Mapping[str, Work], precision: str) -> dict[str, float]:
        """Part → its least milliseconds: its products or its bytes, whichever is more, and then what is sent."""
        flops = self.flops.get(precision, self.flops["fp32"])
        return {
            part: 1000 * (max(each.flops / flops, each.bytes / self.memory) + each.sent / self.exchange)
            for part, each in work.items()
        }

    def estimate_ms(self, work: Mapping[str, Work], precision: str) -> dict[str, float]:
        """Part → milliseconds of a step, those that only take time with them."""
        fixed = FIXED_MS[self.device]
        times = {
            part: self.fixed_ms.get(part, fixed) + floor / self.efficiency.get(part, EFFICIENCY)
            for part, floor in self.floors_ms(work, precision).items()
        }
        return times | {part: ms for part, ms in self.fixed_ms.items() if part not in work}


DATASHEETS = {"cuda": (19.5, 312), "cpu": (0.1, 0.1)}
"""fp32 and bf16 teraflops a second where topology gives none: an A100's, and two AVX2 cores'."""


def described_machine(config: TopologyConfig, cluster: Cluster) -> Machine:
    """A rank of ``cluster``, which ``config`` describes."""
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
