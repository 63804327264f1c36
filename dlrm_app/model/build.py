"""A recommendation model from its configuration: torchrec's DLRM, DLRM_DCN or DLRM_Projection, or a ConcatModel.

Shapes: B batch rows, F sparse features, D the tables' width, N dense features.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.model import ModelConfig
from dlrm_app.errors import ConfigError
from dlrm_app.model.concat import ConcatModel
from dlrm_app.model.ensemble import Members
from dlrm_app.tables.specs import Table, to_bag_config


def build_model(
    config: ModelConfig, tables: Sequence[Table], num_dense: int, device: torch.device, seed: int
) -> nn.Module:
    """The model with its tables on the meta device and its dense part on ``device``.

    ``forward(dense_features [B, N], sparse_features KJT of F keys)`` gives logits [B, 1]. The dense weights
    depend on ``seed`` alone: they are drawn on the CPU whatever the device. With ``config.ensemble_size`` above 1 training
    takes that many times the rows, as ``Members`` says. Raises ConfigError.
    """
    dim = 0 if config.kind == "concat" else _common_dim(tables)
    if num_dense == 0 and config.kind != "concat":
        raise ConfigError([f"the dataset has no dense column, which model={config.kind} needs: add one"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.ensemble_size == 1:
            model = _build(config, _meta_bags(tables), num_dense, dim)
        else:
            model = _build_members(config, tables, num_dense, dim)
    for name, module in model.named_children():
        if name != "sparse_arch":
            module.to(device)
    return model


def _meta_bags(tables: Sequence[Table]) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        tables=[to_bag_config(table) for table in tables], device=torch.device("meta")
    )


def _build_members(config: ModelConfig, tables: Sequence[Table], num_dense: int, dim: int) -> Members:
    count = config.ensemble_size
    if dim % count:
        step = math.lcm(count, 4)  # fbgemm's widths are multiples of 4
        raise ConfigError(
            [
                f"model.ensemble_size={count} must divide the tables' width, got {dim}: use {-(-dim // step) * step}"
            ]
        )
    own = [replace(table, dim=dim // count) for table in tables]
    return Members(
        _meta_bags(tables), [_build(config, _meta_bags(own), num_dense, dim // count) for _ in range(count)]
    )


def _build(config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, dim: int) -> nn.Module:
    top = ending_in(config.top_mlp, 1)
    if config.kind == "concat":
        return ConcatModel(bags, num_dense, top, config.stride)
    bottom = ending_in(config.bottom_mlp, dim)
    if config.kind == "dcn":
        assert config.dcn_num_layers is not None
        assert config.dcn_low_rank_dim is not None
        return DLRM_DCN(bags, num_dense, bottom, top, config.dcn_num_layers, config.dcn_low_rank_dim)
    if config.kind == "projection":
        assert config.projection_branch1 is not None
        assert config.projection_branch2 is not None
        *hidden1, num_vectors1 = config.projection_branch1
        *hidden2, num_vectors2 = config.projection_branch2
        return DLRM_Projection(
            bags, num_dense, bottom, top, [*hidden1, num_vectors1 * dim], [*hidden2, num_vectors2 * dim]
        )
    return DLRM(bags, num_dense, bottom, top)


def ending_in(widths: Sequence[int], last: int) -> list[int]:
    """``widths``, with ``last`` added where it is not the last one already."""
    return [*widths] if widths and widths[-1] == last else [*widths, last]


def _common_dim(tables: Sequence[Table]) -> int:
    dims = sorted({table.dim for table in tables})
    if len(dims) > 1:
        examples = ", ".join(next(f"{t.name} has {d}" for t in tables if t.dim == d) for d in dims)
        raise ConfigError(
            [
                f"the interaction needs tables of one width, these differ: {examples}; give all the same dim, "
                "or use model=concat, which takes any widths"
            ]
        )
    return dims[0]
