"""Embedding tables for serving: rows of fp32, fp16, int8, int4 or int2 in one buffer, pooled by one operator.

An integer row has its own scale and offset (fp16). Layout and operator are those of fbgemm's inference tables. Tables
in several shards (each table in one shard) are torchrec's. Shapes: B batch rows, F sparse features, V ids of all
features and rows, W the widths of all features' vectors added up.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
    IntNBitTableBatchedEmbeddingBagsCodegen,
    rounded_row_size_in_bytes,
)
from fbgemm_gpu.tbe.utils.quantize import quantize_embs
from numpy.typing import NDArray
from torch import nn
from torchrec.distributed import global_settings
from torchrec.inference.modules import shard_quant_model
from torchrec.modules.embedding_configs import DataType
from torchrec.quant.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.errors import DataError, Problem, refuse_if
from dlrm_app.loader.batch import CPU
from dlrm_app.tables.bags import to_bag_config
from dlrm_app.tables.table import Table
from dlrm_app.text import listed

TYPES = {
    "fp32": SparseType.FP32,
    "fp16": SparseType.FP16,
    "int8": SparseType.INT8,
    "int4": SparseType.INT4,
    "int2": SparseType.INT2,
}
_STEPS = {"int8": 255, "int4": 15, "int2": 3}
"""The steps of an integer row, from its lowest to its highest number."""
_ALIGNMENT = 1
_SUM = 0
_MAX_DIMS = ("int2", "int4", "int8", "float16", "float32")
_INT2_DIM = 8
"""An int2 table's width must be a multiple of this: four numbers a byte, and an even number of bytes a row."""

Weights = Callable[[Table], Iterable[torch.Tensor]]
"""Reads a table's weights, in blocks of rows [n, dim]."""


def table_types(tables: Sequence[Table], default: str, by_pattern: Mapping[str, str]) -> dict[str, str]:
    """Table name → the type of its rows: that of the last pattern that fits its name, otherwise ``default``.

    Raises ConfigError for int2 tables whose rows are not an even number of bytes.
    """
    types = {}
    for table in tables:
        fitting = [kind for pattern, kind in by_pattern.items() if fnmatchcase(table.name, pattern)]
        # vectors of float16 are no more exact in float32
        unchanged = table.data_type if table.is_frozen else "fp32"
        types[table.name] = fitting[-1] if fitting else unchanged if default == "fp32" else default
    narrow = [table.name for table in tables if types[table.name] == "int2" and table.dim % _INT2_DIM]
    rule = f"needs tables whose dim is a multiple of {_INT2_DIM}, but that of {listed(narrow)} is not"
    cure = "use quantize=int4, or quantize_tables={TABLE: int4} for each of them"
    refuse_if([Problem("quantize=int2", rule, cure)] if narrow else [])
    return types


def refuse_unfit(blocks: Iterable[torch.Tensor], table: Table, kind: str) -> Iterator[torch.Tensor]:
    """Yields ``blocks`` of the rows of ``table`` [n, dim]. Raises DataError for a row that ``kind`` cannot hold: its
    numbers would become inf or nan, and so would every score that it is part of.
    """
    first = 0
    for block in blocks:
        if not (fits := _fits(block.float(), kind)).all():
            place = int((~fits).nonzero()[0])
            row, number = block[place].float(), first + place
            if not row.isfinite().all():
                cure = "train again with lower learning rates, or correct the file of tables' init_from"
                raise DataError(Problem(f"table {table.name}", f"has nan or inf in row {number:,}", cure))
            low, high = row.min(), row.max()
            rule = f"has rows that {kind} cannot hold: row {number:,} goes from {low:.4g} to {high:.4g}"
            raise DataError(
                Problem(f"table {table.name}", rule, f"use quantize_tables={{{table.name}: fp32}}")
            )
        yield block
        first += len(block)


def _fits(rows: torch.Tensor, kind: str) -> torch.Tensor:
    """[n]: True for each of ``rows`` [n, dim] that is finite after rounding; an integer row by its scale and offset."""
    is_finite = rows.isfinite().all(1)
    if kind == "fp32":
        return is_finite
    if kind == "fp16":
        return rows.half().isfinite().all(1)
    low, high = rows.aminmax(dim=1)
    scale = (high - low) / _STEPS[kind]
    return is_finite & low.half().isfinite() & scale.half().isfinite()


def row_bytes(table: Table, kind: str) -> int:
    """Bytes that a row takes, scale and offset included."""
    return int(rounded_row_size_in_bytes(table.dim, TYPES[kind], _ALIGNMENT))


class QuantizedTables(nn.Module):
    """Tables whose ``forward((values [V], lengths [F, B]))`` returns the pooled vectors, [B, F, D] with ``stacked``,
    else [B, W].

    ``values`` holds the ids of the first feature's rows, then those of the second's, and so on; ``lengths`` the number
    of ids in each; both int32. A third tensor, weights [V], has a factor for the vector of each id. They are not
    checked here. Features are in the order of the tables.
    """

    is_mean: torch.Tensor
    feature_of_column: torch.Tensor
    weights_placements: torch.Tensor
    weights_offsets: torch.Tensor
    weights_tys: torch.Tensor
    D_offsets: torch.Tensor

    def __init__(
        self, tables: Sequence[Table], types: Mapping[str, str], weights: Weights, *, stacked: bool
    ) -> None:
        super().__init__()
        features = [(number, table) for number, table in enumerate(tables) for _ in table.features]
        laid_out = IntNBitTableBatchedEmbeddingBagsCodegen(
            [(t.name, t.rows, t.dim, TYPES[types[t.name]], EmbeddingLocation.HOST) for t in tables],
            feature_table_map=[number for number, _ in features],
            device="cpu",
            output_dtype=SparseType.FP32,
            row_alignment=_ALIGNMENT,
        )
        laid_out.initialize_weights()
        parts = laid_out.split_embedding_weights()
        for table, (rows, scales) in zip(tables, parts, strict=True):
            kind = types[table.name]
            _fill(rows, scales, refuse_unfit(weights(table), table, kind), TYPES[kind])
        # torch's compiler clones buffers, but not parameters
        self.weights_host = nn.Parameter(laid_out.weights_host, requires_grad=False)
        for name in ("weights_placements", "weights_offsets", "weights_tys", "D_offsets"):
            self.register_buffer(name, getattr(laid_out, name))
        self.register_buffer("no_bytes", torch.empty(0, dtype=torch.uint8))
        self.register_buffer("no_places", torch.empty(0, dtype=torch.int32))
        self._width = int(laid_out.total_D)
        self._widths = [table.dim for _, table in features]
        self._max_dims = [int(getattr(laid_out, f"max_{kind}_D")) for kind in _MAX_DIMS]
        self._features_and_dim = (len(features), tables[0].dim) if stacked else None
        self._has_means = any(table.pooling == "mean" for table in tables)
        if self._has_means:
            is_mean = torch.tensor([table.pooling == "mean" for _, table in features])
            columns = torch.tensor([index for index, (_, t) in enumerate(features) for _ in range(t.dim)])
            self.register_buffer("is_mean", is_mean[:, None])
            self.register_buffer("feature_of_column", columns)
        begins = laid_out.weights_physical_offsets
        self._places = [
            (t, begin, row_bytes(t, types[t.name])) for t, begin in zip(tables, begins, strict=True)
        ]

    def named_rows(self) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
        """(name, first row, rows as stored in memory [R, bytes]) of each table."""
        for table, begin, width in self._places:
            rows = self.weights_host[begin : begin + table.rows * width].view(table.rows, width)
            yield table.name, 0, rows.numpy()

    def forward(self, ids: tuple[torch.Tensor, ...]) -> torch.Tensor:
        values, lengths, *weights = ids
        offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths.reshape(-1))
        pooled = self._look_up(slice(None), self.D_offsets, self._width, values, offsets, *weights)
        if self._has_means:
            counts = torch.where(self.is_mean, lengths.clamp(min=1), 1).t().to(torch.float32)
            pooled = pooled / counts.index_select(1, self.feature_of_column)
        return pooled if self._features_and_dim is None else pooled.view(-1, *self._features_and_dim)

    def rows(self, feature: int, values: torch.Tensor) -> torch.Tensor:
        """The rows [V, D] of ids [V] of the feature at place ``feature``: each id is a bag of its own."""
        columns = self.D_offsets[feature : feature + 2]
        offsets = torch.arange(values.size(0) + 1, dtype=values.dtype, device=values.device)
        own = slice(feature, feature + 1)
        return self._look_up(own, columns - columns[0], self._widths[feature], values, offsets)

    def _look_up(
        self,
        features: slice,
        columns: torch.Tensor,
        width: int,
        values: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sums [B, ``width``] of the bags into which ``offsets`` [features · B + 1] divide ``values``.

        ``columns``: the first column of each of them, and the end of the last one's. ``weights``: factors [V].
        """
        sums: torch.Tensor = torch.ops.fbgemm.int_nbit_split_embedding_codegen_lookup_function(
            self.weights_host,
            self.no_bytes,
            self.weights_placements[features],
            self.weights_offsets[features],
            self.weights_tys[features],
            columns,
            width,
            *self._max_dims,
            values,
            offsets,
            _SUM,
            weights,
            SparseType.FP32.as_int(),
            self.no_bytes,
            self.no_places,
            _ALIGNMENT,
            0,
            -1,
            -1,
        )
        return sums


def _fill(
    rows: torch.Tensor, scales: torch.Tensor | None, blocks: Iterable[torch.Tensor], kind: SparseType
) -> None:
    """Quantizes ``blocks`` of rows [n, dim] into ``rows`` and ``scales``, one after another."""
    start = 0
    for block in blocks:
        quantized, its_scales = _quantize(block, kind)
        end = start + len(block)
        rows[start:end].copy_(quantized)
        if scales is not None:
            scales[start:end].copy_(its_scales)
        start = end


def _quantize(weights: torch.Tensor, kind: SparseType) -> tuple[torch.Tensor, Any]:
    """Returns (rows as bytes, their scales and offsets; None for floats)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fbgemm warns of a copy
        rows, scales = quantize_embs(weights.float(), kind)
    return rows, scales


def _quantized(blocks: Iterable[torch.Tensor], kind: SparseType) -> tuple[torch.Tensor, Any]:
    rows, scales = zip(*(_quantize(block, kind) for block in blocks), strict=True)
    return torch.cat(rows), None if scales[0] is None else torch.cat(scales)


@torch.fx.wrap
def to_jagged(features: list[str], values: torch.Tensor, lengths: torch.Tensor) -> KeyedJaggedTensor:
    """Makes a KeyedJaggedTensor of the ids of ``features``. torch.fx calls this function instead of tracing it."""
    return KeyedJaggedTensor(keys=features, values=values, lengths=lengths)


@torch.fx.wrap
def to_weighted(
    features: list[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor
) -> KeyedJaggedTensor:
    """``to_jagged`` with a weight for each id."""
    return KeyedJaggedTensor(keys=features, values=values, lengths=lengths, weights=weights)


class ShardedTables(nn.Module):
    """Like QuantizedTables, in ``num_shards`` shards. ``shard_of``: table name → its shard."""

    columns: torch.Tensor

    def __init__(
        self,
        tables: Sequence[Table],
        types: Mapping[str, str],
        weights: Weights,
        num_shards: int,
        *,
        stacked: bool,
    ) -> None:
        super().__init__()
        self._features = [name for table in tables for name in table.features]
        self._widths = [table.dim for table in tables for _ in table.features]
        bags = _Bags(tables, types, weights)
        self._is_weighted = bags.bags.is_weighted()
        state = bags.state_dict()
        with _propagated_device():
            self._sharded, plan = shard_quant_model(
                bags, num_shards, compute_device="cpu", sharding_device="cpu"
            )
            unfit = self._sharded.load_state_dict(state, strict=False)
            self._features_and_dim = (len(self._features), tables[0].dim) if stacked else None
            self.register_buffer("columns", self._find_columns(tables))  # creates torchrec's id exchange
        # fbgemm's descriptions of the tables exist only in the shards, not in the unsharded module
        left = [
            key for key in (*unfit.missing_keys, *unfit.unexpected_keys) if not key.startswith("bags.tbes.")
        ]
        assert not left, f"torchrec did not take {left}"
        self.shard_of = {name: each.ranks[0] for part in plan.plan.values() for name, each in part.items()}

    def named_rows(self) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
        """(name, first row, rows as stored in memory [R, bytes]) of each table, shard by shard."""
        for module in self._sharded.modules():
            if isinstance(module, IntNBitTableBatchedEmbeddingBagsCodegen):
                parts = module.split_embedding_weights(split_scale_shifts=False)
                for (name, *_), (rows, _) in zip(module.embedding_specs, parts, strict=True):
                    yield name, 0, rows.numpy()

    def _find_columns(self, tables: Sequence[Table]) -> torch.Tensor:
        """The places of the features' columns in torchrec's output, which is ordered by shard."""
        ids = torch.empty(0, dtype=torch.int32), torch.zeros(len(self._features), dtype=torch.int32)
        given = self._look_up(*ids, None)
        widths = {name: table.dim for table in tables for name in table.features}
        begins = dict(zip(given.keys(), given.offset_per_key(), strict=False))
        return torch.cat([begins[name] + torch.arange(widths[name]) for name in self._features])

    def forward(self, ids: tuple[torch.Tensor, ...]) -> torch.Tensor:
        values, lengths, *weights = ids
        pooled = self._look_up(values, lengths.reshape(-1), weights[0] if weights else None).values()
        pooled = pooled.index_select(1, self.columns)
        return pooled if self._features_and_dim is None else pooled.view(-1, *self._features_and_dim)

    def rows(self, feature: int, values: torch.Tensor) -> torch.Tensor:
        """Like ``QuantizedTables.rows``; the bags of the other features are empty, as shards take all
        features.
        """
        own = torch.ones_like(values)
        lengths = [own if place == feature else torch.zeros_like(own) for place in range(len(self._features))]
        begin = sum(self._widths[:feature])
        columns = self.columns[begin : begin + self._widths[feature]]
        return self._look_up(values, torch.cat(lengths), None).values().index_select(1, columns)

    def _look_up(self, values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None) -> Any:
        if not self._is_weighted:
            return self._sharded(to_jagged(self._features, values, lengths))
        given = torch.ones_like(values, dtype=torch.float32) if weights is None else weights
        return self._sharded(to_weighted(self._features, values, lengths, given))


class _Bags(nn.Module):
    """The unsharded tables, in a module of their own, as torchrec's sharding requires."""

    def __init__(self, tables: Sequence[Table], types: Mapping[str, str], weights: Weights) -> None:
        super().__init__()
        quantized = {
            table.name: _quantized(refuse_unfit(weights(table), table, kind), TYPES[kind])
            for table in tables
            for kind in [types[table.name]]
        }
        self.bags = EmbeddingBagCollection(
            tables=[
                replace(to_bag_config(table), data_type=DataType[types[table.name].upper()])
                for table in tables
            ],
            is_weighted=any(table.weighted for table in tables),
            device=CPU,
            output_dtype=torch.float32,
            table_name_to_quantized_weights=quantized,
            quant_state_dict_split_scale_bias=True,
        )

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        return self.bags(ids)


@contextmanager
def _propagated_device() -> Iterator[None]:
    """Makes torchrec shard for the given device; without this setting it always shards for CUDA."""
    before = global_settings.get_propogate_device()
    global_settings.set_propogate_device(True)
    try:
        yield
    finally:
        global_settings.set_propogate_device(before)
