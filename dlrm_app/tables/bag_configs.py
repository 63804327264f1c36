"""Tables as torchrec's EmbeddingBagCollection takes them."""

from collections.abc import Sequence
from typing import Any

import torch
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.tables.specs import Table

POOLINGS = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
DATA_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16, "bf16": DataType.BF16}


def meta_bags(tables: Sequence[Table]) -> EmbeddingBagCollection:
    """``tables`` on the meta device; the weights' values are set once they are sharded, see model/initial_weights."""
    return EmbeddingBagCollection([to_bag_config(table) for table in tables], device=torch.device("meta"))


def to_bag_config(table: Table) -> EmbeddingBagConfig:
    """torchrec's description of ``table``."""
    return EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=list(table.features),
        pooling=POOLINGS[table.pooling],
        data_type=DATA_TYPES[table.data_type],
        init_fn=leave_as_allocated,
    )


def leave_as_allocated(weights: Any) -> Any:
    """An ``init_fn`` that does nothing."""
    return weights
