"""Tables for torchrec: an EmbeddingBagCollection on the meta device, with fbgemm's fused optimizers attached."""

import warnings
from collections.abc import Sequence

import torch
import torchrec.optim
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, table_settings
from dlrm_app.tables.table import RENAMED, Table, table_of

POOLINGS = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
DATA_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16, "bf16": DataType.BF16}


def meta_bags(tables: Sequence[Table], is_weighted: bool = False) -> EmbeddingBagCollection:
    """Makes ``tables`` on the meta device. Weights are set once the tables are sharded, see model/initial_weights.

    ``is_weighted``: vectors are multiplied by the weights of their ids.
    """
    configs = [to_bag_config(table) for table in tables]
    return EmbeddingBagCollection(configs, is_weighted=is_weighted, device=torch.device("meta"))


def meta_vectors(table: Table) -> EmbeddingCollection:
    """Makes ``table`` on the meta device, with the vectors of a row's ids side by side instead of pooled."""
    config = EmbeddingConfig(
        name=torch_name(table.name),
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=list(table.features),
        data_type=DATA_TYPES[table.data_type],
        init_fn=leave_as_allocated,
    )
    return EmbeddingCollection(tables=[config], device=torch.device("meta"))


def torch_name(table: str) -> str:
    """The name of ``table`` in torch, which keeps tables in a ModuleDict: items, keys and others are its attributes.

    ``table_of`` is the inverse.
    """
    return f"{table}{RENAMED}" if hasattr(_NO_TABLES, table) or table.endswith(RENAMED) else table


_NO_TABLES = nn.ModuleDict()


def to_bag_config(table: Table) -> EmbeddingBagConfig:
    """torchrec's description of ``table``; it knows sums and means only."""
    return EmbeddingBagConfig(
        name=torch_name(table.name),
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=list(table.features),
        pooling=POOLINGS[table.pooling] if isinstance(table.pooling, str) else PoolingType.SUM,
        data_type=DATA_TYPES[table.data_type],
        init_fn=leave_as_allocated,
    )


def leave_as_allocated(weights: torch.Tensor) -> torch.Tensor:
    """An ``init_fn`` that does nothing."""
    return weights


def attach_fused_optimizers(model: nn.Module, tables: Sequence[Table], settings: SparseSettings) -> None:
    """Sets the optimizer that each table's backward pass will apply; the tables are still on the meta device.

    The planner reads it to count optimizer memory. A table that gets the dense kernel ignores it.
    """
    by_name = {table.name: table for table in tables}
    with warnings.catch_warnings():
        # the warning recommends a private function of torch; torchrec's documentation still uses this one
        warnings.simplefilter("ignore", DeprecationWarning)
        for key, parameter in model.named_parameters():
            if name := table_of(key):
                chosen = table_settings(by_name[name], settings)
                fused = getattr(torchrec.optim, SPARSE_OPTIMIZERS[chosen.kind].fused)
                apply_optimizer_in_backward(fused, [parameter], fused_arguments(chosen))


def fused_arguments(settings: SparseSettings) -> dict[str, object]:
    """Arguments of the fused class of ``settings.kind``."""
    optimizer = SPARSE_OPTIMIZERS[settings.kind]
    arguments: dict[str, object] = {key: getattr(settings, key) for key in ("lr", *optimizer.arguments)}
    if settings.weight_decay:
        arguments["weight_decay"] = settings.weight_decay
        if optimizer.decay_mode is not None:
            arguments["weight_decay_mode"] = WeightDecayMode[optimizer.decay_mode]
    if settings.max_gradient is not None:
        arguments |= {"gradient_clipping": True, "max_gradient": settings.max_gradient}
    if settings.stochastic_rounding is not None:
        arguments["stochastic_rounding"] = settings.stochastic_rounding
    return arguments
