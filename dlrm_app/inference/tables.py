"""Embedding tables for serving: rows of fp32, fp16, int8, int4 or int2 in one buffer, pooled by one operator.

An integer row has its own scale and offset (fp16). Layout and operator are those of fbgemm's inference tables. Shapes:
B batch rows, F sparse features, V ids of all features and rows, W the widths of all features' vectors added up.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from dlrm_app.errors import DataError, Problem, refuse_if
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
            cure = f"use quantize_tables={{{table.name}: fp32}}"
            raise DataError(Problem(f"table {table.name}", rule, cure))
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
        self.tables, self.stacked = list(tables), stacked
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

    def float_rows(self) -> dict[str, torch.Tensor]:
        """The rows [R, D] of each table by its name, float32. Raises ValueError for integer rows."""
        found = {}
        for table, begin, width in self._places:
            kind = {4 * table.dim: torch.float32, 2 * table.dim: torch.float16}.get(width)
            if kind is None:
                raise ValueError(f"table {table.name} has rows of {width} bytes, which are no floats")
            stored = self.weights_host[begin : begin + table.rows * width]
            found[table.name] = stored.clone().view(kind).view(table.rows, -1).float()
        return found

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
        quantized, its_scales = quantize_rows(block, kind)
        end = start + len(block)
        rows[start:end].copy_(quantized)
        if scales is not None:
            scales[start:end].copy_(its_scales)
        start = end


def quantize_rows(weights: torch.Tensor, kind: SparseType) -> tuple[torch.Tensor, Any]:
    """Returns (rows as bytes, their scales and offsets; None for floats)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fbgemm warns of a copy
        rows, scales = quantize_embs(weights.float(), kind)
    return rows, scales
