"""The registry of architectures, and a model from its configuration.

A new architecture takes a module with ``build``, a line in ARCHITECTURES, and a file in conf/model/.
Shapes: B batch rows, F sparse features, N dense features.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.checks import one_of
from dlrm_app.config.model import ModelConfig
from dlrm_app.errors import refuse_if
from dlrm_app.model import concat, dcn, dlrm, projection
from dlrm_app.model.ensemble import Ensemble
from dlrm_app.tables.bag_configs import meta_bags
from dlrm_app.tables.specs import Table

Builder = Callable[[ModelConfig, EmbeddingBagCollection, int, list[int], list[int]], nn.Module]
"""(configuration, tables, number of dense features, widths of the bottom MLP, widths of the top MLP) → model."""


@dataclass(frozen=True)
class Architecture:
    """A ``model.kind``.

    needs, refuses: keys of ``model`` that it cannot do without, and those that mean nothing to it.
    interacts: the features' vectors meet each other, so that they and the dense features' are of one width.
    """

    build: Builder
    needs: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ("stride",)
    interacts: bool = True


ARCHITECTURES = {
    "dlrm": Architecture(dlrm.build),
    "dcn": Architecture(dcn.build, needs=("dcn_num_layers", "dcn_low_rank_dim")),
    "projection": Architecture(projection.build, needs=("projection_branch1", "projection_branch2")),
    "concat": Architecture(concat.build, refuses=("bottom_mlp",), interacts=False),
}


def model_problems(config: ModelConfig) -> list[str]:
    """Keys of ``model`` that its architecture misses or does not take."""
    if unknown := one_of("model.kind", config.kind, ARCHITECTURES):
        return unknown
    architecture = ARCHITECTURES[config.kind]
    problems = [
        f"model.{key} is needed by model.kind={config.kind}: set it, or use model={config.kind}"
        for key in architecture.needs
        if not getattr(config, key)
    ]
    for key in architecture.refuses:
        if value := getattr(config, key):
            others = " or ".join(kind for kind, other in ARCHITECTURES.items() if key not in other.refuses)
            problems.append(
                f"model.{key}={value} is no setting of model.kind={config.kind}: "
                f"set model.{key}={[] if isinstance(value, list) else 'null'}, or use model={others}"
            )
    if config.ensemble_size > 1 and not architecture.interacts:
        problems.append(
            f"model.ensemble_size={config.ensemble_size} needs tables of one width, which model.kind={config.kind} "
            "does not ask for: set model.ensemble_size=1, or use model=dlrm, dcn or projection"
        )
    return problems


def model_table_problems(config: ModelConfig, tables: Sequence[Table], num_dense: int) -> list[str]:
    """Why the architecture cannot take these tables and ``num_dense`` features."""
    taken = nn.ModuleDict()  # where torchrec keeps tables by name, beside its own attributes
    problems = [
        f"a table cannot be named {table.name}, for torch's ModuleDict has that attribute: say t_{table.name}"
        for table in tables
        if hasattr(taken, table.name)
    ]
    if not ARCHITECTURES[config.kind].interacts:
        return problems
    if num_dense == 0:
        problems.append(f"the dataset has no dense column, which model={config.kind} needs: add one")
    dims, count = sorted({table.dim for table in tables}), config.ensemble_size
    if len(dims) > 1:
        examples = ", ".join(next(f"{t.name} has {d}" for t in tables if t.dim == d) for d in dims)
        problems.append(
            f"the interaction needs tables of one width, these differ: {examples}; give all the same dim, "
            "or use model=concat, which takes any widths"
        )
    elif dims[0] % count:
        step = math.lcm(count, 4)  # fbgemm's widths are multiples of 4
        problems.append(
            f"model.ensemble_size={count} must divide the tables' width, got {dims[0]}: "
            f"use {-(-dims[0] // step) * step}"
        )
    return problems


def build_model(
    config: ModelConfig, tables: Sequence[Table], num_dense: int, device: torch.device, seed: int
) -> nn.Module:
    """The model with its tables on the meta device and its dense part on ``device``.

    ``forward(dense_features [B, N], sparse_features KJT of F keys)`` gives logits [B, 1]. The dense weights
    depend on ``seed`` alone: they are drawn on the CPU whatever the device. With ``ensemble_size`` above 1 training
    takes that many times the rows, as ``Ensemble`` says. Raises ConfigError.
    """
    refuse_if(model_problems(config) or model_table_problems(config, tables, num_dense))
    count = config.ensemble_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if count == 1:
            model = _build(config, tables, num_dense)
        else:
            parts = [replace(table, dim=table.dim // count) for table in tables]
            model = Ensemble(meta_bags(tables), [_build(config, parts, num_dense) for _ in range(count)])
    for name, module in model.named_children():
        if name != "sparse_arch":
            module.to(device)
    return model


def _build(config: ModelConfig, tables: Sequence[Table], num_dense: int) -> nn.Module:
    bottom, top = _ending_in(config.bottom_mlp, tables[0].dim), _ending_in(config.top_mlp, 1)
    return ARCHITECTURES[config.kind].build(config, meta_bags(tables), num_dense, bottom, top)


def _ending_in(widths: Sequence[int], last: int) -> list[int]:
    """``widths``, with ``last`` added where it is not the last one already."""
    return [*widths] if widths and widths[-1] == last else [*widths, last]
