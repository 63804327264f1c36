"""Quantized tables in shards, by torchrec's sharding of quantized tables, each table whole in one of them.

Shapes: see ``dlrm_app.inference.tables.quantized``.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from fbgemm_gpu.tbe.utils.quantize import quantize_embs
from torch import nn
from torchrec.distributed import global_settings
from torchrec.inference.modules import shard_quant_model
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.quant.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.inference.tables.quantized import TYPES, Weights
from dlrm_app.tables.specs import Table

CPU = torch.device("cpu")


@torch.fx.wrap
def to_jagged(features: list[str], values: torch.Tensor, lengths: torch.Tensor) -> KeyedJaggedTensor:
    """The ids of ``features`` as torchrec takes them; torch.fx calls it rather than looks into it."""
    return KeyedJaggedTensor(keys=features, values=values, lengths=lengths)


class ShardedTables(nn.Module):
    """As QuantizedTables, in ``num_shards``; ``shard_of`` tells each table's."""

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
        bags = _Bags(tables, types, weights)
        state = bags.state_dict()
        with _device_is_heeded():
            self._sharded, plan = shard_quant_model(
                bags, num_shards, compute_device="cpu", sharding_device="cpu"
            )
            unfit = self._sharded.load_state_dict(state, strict=False)
            self._features_and_dim = (len(self._features), tables[0].dim) if stacked else None
            self.register_buffer("columns", self._find_columns(tables))  # a first lookup makes what sends ids
        # what describes the tables to fbgemm was made anew for each shard, and has no counterpart in the whole
        left = [
            key for key in (*unfit.missing_keys, *unfit.unexpected_keys) if not key.startswith("bags.tbes.")
        ]
        assert not left, f"torchrec did not take {left}"
        self.shard_of = {name: each.ranks[0] for part in plan.plan.values() for name, each in part.items()}

    def _find_columns(self, tables: Sequence[Table]) -> torch.Tensor:
        """Where the features' columns stand among those that torchrec gives, which are ordered by shard."""
        ids = torch.empty(0, dtype=torch.int32), torch.zeros(len(self._features), dtype=torch.int32)
        given = self._sharded(to_jagged(self._features, *ids))
        widths = {name: table.dim for table in tables for name in table.features}
        begins = dict(zip(given.keys(), given.offset_per_key(), strict=False))
        return torch.cat([begins[name] + torch.arange(widths[name]) for name in self._features])

    def forward(self, ids: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, lengths = ids
        pooled = self._sharded(to_jagged(self._features, values, lengths.reshape(-1))).values()
        pooled = pooled.index_select(1, self.columns)
        return pooled if self._features_and_dim is None else pooled.view(-1, *self._features_and_dim)


class _Bags(nn.Module):
    """The tables whole; torchrec shards what lies within a module."""

    def __init__(self, tables: Sequence[Table], types: Mapping[str, str], weights: Weights) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fbgemm's, of a copy
            quantized = {t.name: quantize_embs(weights(t).float(), TYPES[types[t.name]]) for t in tables}
        self.bags = EmbeddingBagCollection(
            tables=[_config(table, types[table.name]) for table in tables],
            is_weighted=False,
            device=CPU,
            output_dtype=torch.float32,
            table_name_to_quantized_weights=quantized,
            quant_state_dict_split_scale_bias=True,
        )

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        return self.bags(ids)


@contextmanager
def _device_is_heeded() -> Iterator[None]:
    """torchrec shards for CUDA, whatever device it is told, unless this is set."""
    before = global_settings.get_propogate_device()
    global_settings.set_propogate_device(True)
    try:
        yield
    finally:
        global_settings.set_propogate_device(before)


def _config(table: Table, kind: str) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=table.name,
        embedding_dim=table.dim,
        num_embeddings=table.rows,
        feature_names=list(table.features),
        pooling=PoolingType.MEAN if table.pooling == "mean" else PoolingType.SUM,
        data_type=DataType[kind.upper()],
    )
