"""The cost of each sharding option of a table: memory by kind and time, by torchrec's own estimators.

Equal tables (rows, width, pooling factors, precision, optimizer, constraints) form a class, which is estimated once:
a thousand tables of ten classes cost as much as ten.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torchrec.distributed.planner.constants import UVM_CACHING_RATIO
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.estimator.annotations import use_block_usage_penalty, use_min_dim_for_lookup
from torchrec.distributed.planner.estimator.config import EmbeddingPerfEstimatorConfig
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ParameterConstraints, Shard, ShardingOption
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from dlrm_app.config.sharding import SHARDING_TYPES, ShardingConfig
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.constraints import (
    COLUMN_TYPES,
    DEFAULT_TYPES,
    WIDEST,
    constraints_of,
    equal_part,
    sharding_types_of,
)
from dlrm_app.sharding.sharder import make_sharders
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.table import BYTES_PER_WEIGHT, Table
from dlrm_app.text import listed

KINDS = ("weights", "optimizer", "inputs and outputs", "cache")
"""Kinds of memory that a shard uses on its rank, in the order of ``Option.memory``'s columns."""

WEIGHT_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SLOT_BYTES, ROW_BYTES = 16, 4
"""Bytes of fbgemm's cache: id and time of last use for each cached row, and a place for each row of the table."""


@dataclass(frozen=True)
class Workload:
    """The input of a plan: tables by name, their constraints, and how they are trained.

    ``dense_kernel``: names of the tables that take the dense kernel, see ``constraints``.
    """

    tables: Mapping[str, Table]
    sharding: ShardingConfig
    optimizers: Mapping[str, str]
    dense_kernel: frozenset[str]
    global_batch_size: int

    def constraints(self, cluster: Cluster) -> dict[str, ParameterConstraints]:
        """torchrec's constraints of each table on ``cluster``: its own, or the defaults."""
        types = DEFAULT_TYPES if cluster.num_ranks > 1 else ["table_wise"]
        if cluster.nodes > 1:
            # trains like table_wise and row_wise, and keeps most of row_wise's traffic inside a node
            types = [*DEFAULT_TYPES, "table_row_wise"]
        by_name = {}
        for name, table in self.tables.items():
            given = constraints_of(table, self.sharding)
            allowed_types = [kind for kind in given.get("types") or types if kind in sharding_types_of(table)]
            kernels = ["dense"] if name in self.dense_kernel else list(given.get("kernels") or ["fused"])
            if "data_parallel" in allowed_types and "dense" not in kernels:
                kernels.append("dense")  # replicated tables have no other kernel
            share, part = given.get("cache_load_factor"), given.get("min_partition")
            if cluster.device == "cuda" and table.is_frozen and table.dim > WIDEST:
                allowed_types = [kind for kind in allowed_types if kind in COLUMN_TYPES] or ["column_wise"]
                part = min(part or WIDEST, equal_part(table.dim))
            by_name[name] = ParameterConstraints(
                sharding_types=allowed_types,
                compute_kernels=kernels,
                min_partition=part,
                cache_params=None if share is None else CacheParams(load_factor=share),
                feature_names=list(table.features),
                pooling_factors=table.expected_pooling_factors,
            )
        return by_name


@dataclass(frozen=True)
class Option:
    """A sharding option of a table with S shards. Arrays are read-only; the tables of a class share them.

    sizes, offsets: int [S, 2], rows and columns. time: milliseconds of a step [S].
    memory: bytes by KINDS [S, 4]; host: bytes in the memory of the rank's host [S].
    """

    sharding_type: str
    kernel: str
    load_factor: float | None
    sizes: np.ndarray
    offsets: np.ndarray
    time: np.ndarray
    memory: np.ndarray
    host: np.ndarray

    @cached_property
    def device(self) -> np.ndarray:
        """Bytes in the rank's memory, float [S]."""
        return self.memory.sum(1)

    @cached_property
    def loads(self) -> np.ndarray:
        """Milliseconds, bytes in the rank's memory and bytes in its host's, [3, S]."""
        return np.stack([self.time, self.device, self.host])

    @cached_property
    def total_time(self) -> float:
        """Milliseconds of all shards together."""
        return float(self.time.sum())

    @cached_property
    def label(self) -> str:
        """The sharding type, with the kernel unless it is ``fused``."""
        return self.sharding_type if self.kernel == "fused" else f"{self.sharding_type}, {self.kernel}"


Options = Mapping[str, Sequence[Option]]


def estimate_options(
    work: Workload, cluster: Cluster, constraints: Mapping[str, ParameterConstraints] | None = None
) -> dict[str, tuple[Option, ...]]:
    """Table name → every sharding option that ``constraints`` (default:
    ``work``'s) allow, in the order of SHARDING_TYPES.

    Tables of one class share one tuple. Raises ConfigError naming each table without any option.
    """
    constraints = work.constraints(cluster) if constraints is None else constraints
    estimator = _Estimator(work, cluster, constraints)
    classes: dict[str, list[str]] = {}
    for name in sorted(work.tables):
        classes.setdefault(_class_key(work, name, constraints[name]), []).append(name)
    options: dict[str, tuple[Option, ...]] = {}
    problems = []
    for names in classes.values():
        allowed = constraints[names[0]]
        shared = tuple(estimator.options(work.tables[names[0]], allowed))
        if not shared:
            types, kernels = (
                ", ".join(x or ["any"]) for x in (allowed.sharding_types, allowed.compute_kernels)
            )
            rule = f"has no sharding type of {types} that runs with the kernels {kernels} on {cluster.device}"
            problems.append(Problem(f"table {listed(names, 1)}", rule, "allow another type or kernel"))
        options.update(dict.fromkeys(names, shared))
    refuse_if(problems)
    return options


def _class_key(work: Workload, name: str, allowed: ParameterConstraints) -> str:
    table = work.tables[name]
    anonymous = replace(
        allowed,
        feature_names=None,
        pooling_factors=sorted(allowed.pooling_factors),
        sharding_types=sorted(allowed.sharding_types or []),
        compute_kernels=sorted(allowed.compute_kernels or []),
    )
    kind = "/unpooled" if table.attention else "/weighted" if table.weighted else ""
    return f"{table.rows}/{table.dim}/{table.data_type}/{work.optimizers[name]}{kind}/{anonymous!r}"


@EmbeddingPerfEstimatorFactory.register("cpu")
@use_block_usage_penalty(False)
@use_min_dim_for_lookup(False)
class CpuConfig(EmbeddingPerfEstimatorConfig):
    """A CPU estimator without torchrec's penalties for narrow rows, which model idle thread blocks of a GPU.

    torchrec would multiply the time of whole tables narrower than 64 by 1.75, and count at least 32 columns,
    but not for tables cut by rows.
    """


_EMPTY_BAGS, _EMPTY_WEIGHTED_BAGS = EmbeddingBagCollection([]), EmbeddingBagCollection([], is_weighted=True)
_EMPTY_VECTORS = EmbeddingCollection(
    [EmbeddingConfig(name="_", num_embeddings=1, embedding_dim=4, feature_names=["_"])], torch.device("meta")
)
"""Empty modules, of the types that hold the tables."""


def _module_like(table: Table) -> nn.Module:
    if table.attention:
        return _EMPTY_VECTORS
    return _EMPTY_WEIGHTED_BAGS if table.weighted else _EMPTY_BAGS


def _sharder_argument(sharders: dict[str, Any]) -> dict[str, Any]:
    """The argument by which the installed estimators take ``sharders``: their data, or in torchrec 1.6 themselves."""
    if "sharder_map" in signature(EmbeddingStorageEstimator.estimate).parameters:
        return {"sharder_map": sharders}
    return {"sharder_data_map": build_sharder_data_map(sharders)}


def _meta_weight(table: Table) -> torch.Tensor:
    """A weight as torchrec's estimators read it.

    It has no optimizer: its state is counted here, since torchrec's figures are right for some kinds only.
    """
    return torch.empty(table.rows, table.dim, dtype=WEIGHT_TYPES[table.data_type], device="meta")


def _cache_bytes(
    weights: NDArray[np.int64], rows: NDArray[np.int64], load_factor: float | None
) -> NDArray[np.float64]:
    """Bytes of fbgemm's cache for shards with these bytes of weights and these rows; 0 without a ``load_factor``."""
    if load_factor is None:
        return np.zeros(len(weights))
    return np.round(weights * load_factor) + np.ceil(rows * (ROW_BYTES + SLOT_BYTES * load_factor))


class _Estimator:
    def __init__(
        self, work: Workload, cluster: Cluster, constraints: Mapping[str, ParameterConstraints]
    ) -> None:
        self._work, self._cluster, self._topology = work, cluster, cluster.to_torchrec()
        self._batch_size = -(-work.global_batch_size // cluster.num_ranks)
        self._pooled, self._unpooled = make_sharders(work.sharding.collectives)
        by_module = {EmbeddingBagCollection: self._pooled, EmbeddingCollection: self._unpooled}
        self._sharders = _sharder_argument({sharder_name(kind): each for kind, each in by_module.items()})
        given = dict(constraints)
        self._estimators = (
            EmbeddingPerfEstimatorFactory.create("cpu", topology=self._topology, constraints=given)
            if cluster.device == "cpu"
            else EmbeddingPerfEstimator(self._topology, given),
            EmbeddingStorageEstimator(self._topology, given),
        )

    def options(self, table: Table, allowed: ParameterConstraints) -> Iterator[Option]:
        """Every option of ``table``; the dense kernel only if there is no other."""
        sharder = self._unpooled if table.attention else self._pooled
        for kind in sharding_types_of(table):
            if kind in (allowed.sharding_types or SHARDING_TYPES):
                offered = sharder.compute_kernels(kind, self._cluster.device)
                left = sorted(kernel for kernel in offered if kernel in (allowed.compute_kernels or offered))
                kernels = [kernel for kernel in left if kernel != "dense"] or left
                yield from (self._option(table, allowed, kind, kernel) for kernel in kernels)

    def _option(self, table: Table, allowed: ParameterConstraints, kind: str, kernel: str) -> Option:
        sizes, offsets = self._cut(table, allowed, kind)
        # equal sizes are estimated once
        distinct, which = np.unique(sizes, axis=0, return_inverse=True)  # numpy 2.0: ``which`` is 2-D
        estimated = self._estimated(table, allowed, kind, kernel, distinct)
        on_host, is_cached = "uvm" in kernel, kernel == "fused_uvm_caching"
        load_factor = (estimated.cache_load_factor or UVM_CACHING_RATIO) if is_cached else None
        weights = sizes.prod(1) * BYTES_PER_WEIGHT[table.data_type]
        cache = _cache_bytes(weights, sizes[:, 0], load_factor)
        memory_kind = "hbm" if self._cluster.device == "cuda" else "ddr"
        total = np.array([getattr(shard.storage, memory_kind) for shard in estimated.shards], dtype=float)
        exchanged = np.maximum(0, total[which.ravel()] - (cache if on_host else weights))
        time = np.array([shard.perf.total if shard.perf else 0.0 for shard in estimated.shards])
        per_weight, per_row = self._state_bytes(table, sizes, kernel)
        # fbgemm keeps per-row state on the device even if the weights are on the host
        state = per_row if on_host else per_weight + per_row
        return Option(
            sharding_type=kind,
            kernel=kernel,
            load_factor=load_factor,
            sizes=sizes,
            offsets=offsets,
            time=time[which.ravel()],
            memory=np.stack([weights * (not on_host), state, exchanged, cache], axis=1).astype(float),
            host=(weights + per_weight if on_host else np.zeros(len(sizes))).astype(float),
        )

    def _cut(
        self, table: Table, allowed: ParameterConstraints, kind: str
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows and columns of each shard, its first row and column) [shards, 2]."""
        topology = self._topology
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about indivisible widths: such an option is one shard
            cut = calculate_shard_sizes_and_offsets(
                _meta_weight(table),
                topology.world_size,
                topology.intra_group_size,
                kind,
                allowed.min_partition,
            )
        sizes, offsets = (np.array(part, dtype=np.int64) for part in cut)
        return sizes, offsets

    def _estimated(
        self, table: Table, allowed: ParameterConstraints, kind: str, kernel: str, sizes: NDArray[np.int64]
    ) -> ShardingOption:
        """torchrec's option with shards of these ``sizes``, and its estimates of their time and memory."""
        estimated = ShardingOption(
            name=table.name,
            tensor=_meta_weight(table),
            module=("", _module_like(table)),
            input_lengths=allowed.pooling_factors,
            batch_size=self._batch_size,
            sharding_type=kind,
            partition_by=get_partition_by_type(kind),
            compute_kernel=kernel,
            shards=[Shard(size=size, offset=[0, 0]) for size in sizes.tolist()],
            cache_params=allowed.cache_params,
            is_pooled=table.attention is None,
            feature_names=allowed.feature_names,
        )
        for estimator in self._estimators:
            estimator.estimate([estimated], **self._sharders)
        return estimated

    def _state_bytes(
        self, table: Table, sizes: NDArray[np.int64], kernel: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bytes of optimizer state for the weights, and for the rows, of each shard."""
        optimizer = SPARSE_OPTIMIZERS[self._work.optimizers[table.name]]
        per_weight, per_row = (part.astype(float) for part in optimizer.state_bytes(*sizes.T))
        if kernel == "dense":  # the gradient, as large as the table
            per_weight += sizes.prod(1) * BYTES_PER_WEIGHT[table.data_type]
        return per_weight, per_row
