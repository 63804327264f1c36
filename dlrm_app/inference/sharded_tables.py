"""``QuantizedTables`` in several shards, each table in one of them: torchrec's sharded inference tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from numpy.typing import NDArray
from torch import nn
from torchrec.distributed import global_settings
from torchrec.inference.modules import shard_quant_model
from torchrec.modules.embedding_configs import DataType
from torchrec.quant.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.inference.tables import TYPES, Weights, quantize_rows, refuse_unfit
from dlrm_app.loader.batch import CPU
from dlrm_app.tables.bags import to_bag_config
from dlrm_app.tables.table import Table, features_of


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
        self._features = features_of(tables)
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
        """Like ``QuantizedTables.rows``; the bags of the other features are empty, as shards take all features."""
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


def _quantized(blocks: Iterable[torch.Tensor], kind: SparseType) -> tuple[torch.Tensor, Any]:
    rows, scales = zip(*(quantize_rows(block, kind) for block in blocks), strict=True)
    return torch.cat(rows), None if scales[0] is None else torch.cat(scales)


@contextmanager
def _propagated_device() -> Iterator[None]:
    """Makes torchrec shard for the given device; without this setting it always shards for CUDA."""
    before = global_settings.get_propogate_device()
    global_settings.set_propogate_device(True)
    try:
        yield
    finally:
        global_settings.set_propogate_device(before)
