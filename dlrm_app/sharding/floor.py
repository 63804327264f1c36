"""The floor of a training step on a described cluster: the least time that its bytes and operations need.

    floor = the largest, over ranks, of max(M / memory, H / host, A / within a node, B / between nodes, F / peak)

No resource can do more than its rate, and at best all are busy at the same time: the roofline of Williams, Waterman
and Patterson (Communications of the ACM 52(4), 2009). Counted for a rank, with N nodes of L ranks, R = N L, and G rows
in the global batch:

- M, bytes of its memory. A shard of n rows × d columns of a table with r rows, F features and P ids a sample looks up
  l = G P n / r ids of 8 bytes, in u = min(l, n) rows. They are read, then read and written with their optimizer's
  state by the update. It writes G F d values and reads their gradients. The dense kernel updates all n rows, from a
  gradient of the same size. The dense optimizer reads and writes the dense weights and its state. Activations are left
  out: they may stay in caches.
- H, bytes of the host's memory: the rows and states of tables with the kernel fused_uvm.
- A and B, bytes sent within its node and to other nodes. With s = (G / R) F d values for the samples of one rank, a
  shard sends (L - 1) s and (R - L) s, and gets as many gradients back. Vectors of tables that are cut by rows are added
  on the way: (L - 1) / L R s and (R - L) / L s (reduce-scatter and all-gather). Gradients of the W bytes of dense and
  replicated weights are added over all ranks: 2 (L - 1) / L W and 2 (N - 1) / N W / L (all-reduce; Chan, Heimlich,
  Purkayastha and van de Geijn, Concurrency and Computation 19(13), 2007). Ids are left out: they travel while the
  link's other direction is busy.
- F, operations: the dense part's matrix products and the interaction, forward and backward.

A data_parallel table has G / R rows of the batch on each rank. An ensemble of E models reads E times as many rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dlrm_app.config.optimizer import DENSE_STATES
from dlrm_app.config.sharding import CollectivesConfig, TopologyConfig
from dlrm_app.config.train import ModelConfig
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.placement import Placed
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.table import BYTES_PER_WEIGHT, Table, table_of

VALUE, INDEX = 4, 8
"""Bytes of a pooled value or a dense weight, and of an id."""
SENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Number format of an exchange → bytes of a value."""
ADDED_UP = ("row_wise", "table_row_wise", "grid_shard")
"""Sharding types that cut tables by rows, so that vectors of several ranks are added up."""
MEMORY, HOST, WITHIN, BETWEEN = range(4)
"""Rows of ``DeviceRates.bandwidths`` and of arrays [4, R], by RESOURCES."""
RESOURCES = ("memory", "host memory", "exchange within a node", "exchange between nodes", "arithmetic")


@dataclass(frozen=True)
class DeviceRates:
    """Rates of a rank: bytes a second by RESOURCES without the last, and operations a second (None: not known)."""

    bandwidths: tuple[float, float, float, float]
    flops: float | None


@dataclass(frozen=True)
class DenseWork:
    """The dense part of a step on each rank: operations, and bytes of the weights and of their update."""

    flops: float
    weight_bytes: float
    update_bytes: float


@dataclass(frozen=True)
class Floor:
    """Resource → its seconds on the rank that needs most of it; resources without work are left out."""

    by_resource: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The least seconds of a step."""
        return max(self.by_resource.values())

    @property
    def limit(self) -> str:
        """The resource that a step takes longest."""
        return max(self.by_resource, key=lambda name: self.by_resource[name])


def step_floor(
    plan: EstimatedPlan, dense: DenseWork, collectives: CollectivesConfig, rates: DeviceRates
) -> Floor:
    """The floor of a step under ``plan``; see the module's formula."""
    cluster, replicated = plan.cluster, dense.weight_bytes
    total = np.zeros((len(rates.bandwidths), cluster.num_ranks))
    total[MEMORY] += dense.update_bytes
    for name, table in plan.work.tables.items():
        placed = plan.assignment[name]
        is_copied = placed.option.sharding_type == "data_parallel"
        rows = plan.work.global_batch_size / (cluster.num_ranks if is_copied else 1)
        needs = [*memory_bytes(table, placed, plan.work.optimizers[name], rows)]
        if is_copied:
            replicated += VALUE * table.rows * table.dim
        else:
            needs += [*sent_bytes(table, placed, plan.work.global_batch_size, cluster, collectives)]
        for of_resource, need in zip(total, needs, strict=False):  # a copy sends nothing of its own
            np.add.at(of_resource, np.array(placed.ranks), need)
    in_node, nodes = cluster.devices_per_node, cluster.nodes
    total[WITHIN] += 2 * (in_node - 1) / in_node * replicated
    total[BETWEEN] += 2 * (nodes - 1) / nodes * replicated / in_node
    seconds = [*(total.max(1) / np.array(rates.bandwidths)).tolist()]
    seconds.append(0.0 if rates.flops is None else dense.flops / rates.flops)
    return Floor({name: value for name, value in zip(RESOURCES, seconds, strict=True) if value})


def memory_bytes(table: Table, placed: Placed, optimizer: str, rows: float) -> np.ndarray:
    """Bytes of each shard's own memory and of its host's [2, S], for ``rows`` of the batch."""
    option = placed.option
    height, width = option.sizes.T.astype(float)
    lookups = rows * sum(table.expected_pooling_factors) * height / table.rows
    touched = np.minimum(lookups, height)
    is_dense = option.kernel == "dense"
    updated = np.zeros_like(height) if table.is_frozen else height if is_dense else touched
    row_bytes = BYTES_PER_WEIGHT[table.data_type] * width
    state = np.sum(SPARSE_OPTIMIZERS[optimizer].state_bytes(updated, width), axis=0)
    of_rows = row_bytes * (touched + (3 if is_dense else 2) * updated) + 2 * state
    others = INDEX * lookups + 2 * VALUE * rows * len(table.features) * width
    in_host = option.kernel == "fused_uvm"
    return np.stack([others + (0 if in_host else of_rows), of_rows * in_host])


def sent_bytes(
    table: Table, placed: Placed, global_rows: int, cluster: Cluster, collectives: CollectivesConfig
) -> np.ndarray:
    """Bytes that each shard's rank sends and gets back within its node and between nodes [2, S]."""
    ranks, in_node = cluster.num_ranks, cluster.devices_per_node
    value = SENT_BYTES[collectives.forward] + SENT_BYTES[collectives.backward] * (not table.is_frozen)
    vectors = value * global_rows / ranks * len(table.features) * placed.option.sizes[:, 1].astype(float)
    if placed.option.sharding_type in ADDED_UP:
        return np.stack([(in_node - 1) * ranks * vectors, (ranks - in_node) * vectors]) / in_node
    return np.stack([(in_node - 1) * vectors, (ranks - in_node) * vectors])


def dense_work(
    weights: Mapping[str, Sequence[int]],
    config: ModelConfig,
    tables: Sequence[Table],
    rows: int,
    optimizer: str,
) -> DenseWork:
    """The dense part's work on ``rows`` of a rank. ``weights``: name → shape of every parameter of the model."""
    dense = {name: shape for name, shape in weights.items() if table_of(name) is None}
    num_bytes = float(VALUE * sum(int(np.prod(shape)) for shape in dense.values()))
    forward, first = matrix_flops(dense, rows)
    interaction = interaction_flops(config, tables, rows)
    flops = 3 * (forward + interaction) - first
    # the update reads weight and gradient, and writes the weight; it reads and writes each state
    return DenseWork(flops, num_bytes, num_bytes * (3 + 2 * DENSE_STATES[optimizer]))


def matrix_flops(weights: Mapping[str, Sequence[int]], rows: int) -> tuple[float, float]:
    """Operations of the forward pass: of all weight matrices, and of first layers, whose input needs no gradient."""
    total, first, begun = 0.0, 0.0, set()
    for name, shape in weights.items():
        if len(shape) < 2:
            continue
        flops = 2.0 * rows * int(np.prod(shape))
        total += flops
        member, is_bottom, _ = name.partition("dense_arch")
        if is_bottom and member not in begun:
            begun.add(member)
            first += flops
    return total, first


def interaction_flops(config: ModelConfig, tables: Sequence[Table], rows: int) -> float:
    """Operations of the interaction's products of features, without those of its own weights."""
    vectors = 1 + sum(len(table.features) for table in tables)
    if config.kind == "dlrm":
        pairs = vectors * (vectors - 1) / 2
    elif config.kind == "projection":
        assert config.projection_branch1 is not None
        assert config.projection_branch2 is not None
        pairs = config.projection_branch1[-1] * config.projection_branch2[-1]
    else:
        return 0.0
    # a table of an ensemble holds the vectors of all its models, side by side
    return 2.0 * rows * pairs * tables[0].dim


def described_rates(config: TopologyConfig, cluster: Cluster, precision: str, tf32: bool) -> DeviceRates:
    """The rates of a rank of ``cluster``, which ``config`` describes. bf16's peak also bounds TF32, which is slower."""
    speed = cluster.bandwidths
    is_reduced = precision == "bf16" or (tf32 and cluster.device == "cuda")
    peak = config.bf16_tflops if is_reduced else config.fp32_tflops
    host = min(speed.host_memory, speed.host_link)
    a_second = 1000 * speed.memory, 1000 * host, 1000 * speed.intra_node, 1000 * speed.inter_node
    return DeviceRates(a_second, None if peak is None else 1e12 * peak)
