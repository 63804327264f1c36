"""One optimizer for all: tables updated inside the backward pass where fbgemm can, everything else beside it."""

import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim import optimizers as fused_optimizers
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from dlrm_app.config.optimizer import (
    DenseSettings,
    OptimizerConfig,
    SparseSettings,
    change_settings,
    sparse_problems,
)
from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.display.text import listed
from dlrm_app.errors import ConfigError
from dlrm_app.model.precision import table_type_problems
from dlrm_app.sharding.constraints import wishes_of
from dlrm_app.tables.specs import Table
from dlrm_app.training.touched_rows import TouchedRows

logger = logging.getLogger(__name__)

FUSED_CLASSES = {
    "sgd": fused_optimizers.SGD,
    "adagrad": fused_optimizers.Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
    "adam": fused_optimizers.Adam,
    "partial_rowwise_adam": fused_optimizers.PartialRowWiseAdam,
    "lamb": fused_optimizers.LAMB,
    "partial_rowwise_lamb": fused_optimizers.PartialRowWiseLAMB,
}
FUSED_KINDS = {"cpu": {"sgd", "adagrad", "rowwise_adagrad"}, "cuda": set(FUSED_CLASSES)}
# fbgemm takes weight_decay for every kind and drops it without a word where it has none: for sgd and adagrad, and
# on CPU for row-wise Adagrad too, unless the table is shared.
FUSED_WEIGHT_DECAY = {"cpu": set[str](), "cuda": set(FUSED_CLASSES) - {"sgd", "adagrad"}}


def table_settings(table: Table, settings: SparseSettings) -> SparseSettings:
    """The sparse optimizer's settings with what ``table`` changes of them."""
    return change_settings(settings, table.optimizer)


def dense_kernel_tables(
    tables: Sequence[Table], settings: SparseSettings, device: torch.device
) -> frozenset[str]:
    """Names of the tables whose optimizer fbgemm has not fused for ``device``: a torch optimizer steps them."""
    return frozenset(
        table.name for table in tables if not _has_fused(table_settings(table, settings), device.type)
    )


def _has_fused(settings: SparseSettings, device_type: str) -> bool:
    if settings.weight_decay and settings.kind not in FUSED_WEIGHT_DECAY[device_type]:
        return False
    return settings.kind in FUSED_KINDS[device_type]


def table_problems(
    tables: Sequence[Table], settings: SparseSettings, sharding: ShardingConfig, device: torch.device
) -> list[str]:
    """What ``device`` or the tables' own settings do not allow, one problem a cause."""
    causes: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        for cause in _table_problems(table, settings, sharding, device):
            causes[cause].append(table.name)
    return [f"{_names(names)}: {cause}" for cause, names in causes.items()]


def _table_problems(
    table: Table, settings: SparseSettings, sharding: ShardingConfig, device: torch.device
) -> list[str]:
    try:
        chosen = table_settings(table, settings)
    except ConfigError as error:
        return error.problems
    problems = sparse_problems("optimizer", chosen) if table.optimizer else []
    if problems:
        return problems
    wishes = wishes_of(table, sharding)
    is_dense = "data_parallel" in wishes.get("types", ()) or wishes.get("kernels") == ["dense"]
    is_fused = _has_fused(chosen, device.type) and not is_dense
    problems += table_type_problems(table, is_fused, bool(chosen.stochastic_rounding), device)
    if chosen.max_gradient is not None and not is_fused:
        problems.append(
            "max_gradient needs an optimizer inside the backward pass: set it to null, or choose kind, weight_decay "
            "and sharding that are fused (docs/optimizers.md)"
        )
    if "lamb" in chosen.kind and table.init == "zeros":
        problems.append("lamb's steps are as long as a row's weights, so init zeros would never move")
    return problems


def _names(names: Sequence[str]) -> str:
    return f"table{'s' if len(names) > 1 else ''} {listed(names)}"


def say_dense_kernel(tables: Sequence[Table], settings: SparseSettings, device: torch.device) -> None:
    """Says which tables pay for a pass over all their rows in every step."""
    causes: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        chosen = table_settings(table, settings)
        if not _has_fused(chosen, device.type):
            is_fused_without = chosen.kind in FUSED_KINDS[device.type]
            causes[chosen.kind + (" with weight_decay" if is_fused_without else "")].append(table.name)
    for cause, names in causes.items():
        logger.info(
            "%s: %s is not fused on %s, so every step passes over the whole table",
            _names(names),
            cause,
            device.type,
        )


def attach_fused_optimizers(model: nn.Module, tables: Sequence[Table], settings: SparseSettings) -> None:
    """Tells each table, still on the meta device, which optimizer its backward pass will apply.

    The planner reads it to count optimizer memory; a table that ends with the dense kernel ignores it.
    """
    by_name = {table.name: table for table in tables}
    with warnings.catch_warnings():
        # torchrec points to a private function of torch instead; its own is what its documentation teaches
        warnings.simplefilter("ignore", DeprecationWarning)
        for key, parameter in model.named_parameters():
            if "embedding_bags" in key:
                chosen = table_settings(by_name[key.split(".")[-2]], settings)
                apply_optimizer_in_backward(FUSED_CLASSES[chosen.kind], [parameter], _fused_arguments(chosen))


def _fused_arguments(settings: SparseSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {"lr": settings.lr}
    if settings.kind != "sgd":
        arguments["eps"] = settings.eps
    if settings.kind.endswith(("adam", "lamb")):
        arguments |= {"beta1": settings.beta1, "beta2": settings.beta2}
    if settings.weight_decay:
        arguments["weight_decay"] = settings.weight_decay
    if settings.weight_decay and settings.kind == "rowwise_adagrad":
        arguments["weight_decay_mode"] = WeightDecayMode.L2  # fbgemm's default is none
    if settings.max_gradient is not None:
        arguments |= {"gradient_clipping": True, "max_gradient": settings.max_gradient}
    if settings.stochastic_rounding is not None:
        arguments["stochastic_rounding"] = settings.stochastic_rounding
    return arguments


def make_dense_optimizer(
    settings: DenseSettings, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the dense part, which clips the gradient's global norm first if asked to."""
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    optimizer: torch.optim.Optimizer
    if settings.kind == "sgd":
        optimizer = torch.optim.SGD(parameters, momentum=settings.momentum, **common)
    elif settings.kind == "adagrad":
        optimizer = torch.optim.Adagrad(parameters, eps=settings.eps, **common)
    else:
        adam = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
        optimizer = adam(parameters, eps=settings.eps, betas=(settings.beta1, settings.beta2), **common)
    clip_norm = settings.clip_norm
    if clip_norm is not None:
        # replicated gradients are averaged by then, so every rank finds the same norm
        optimizer.register_step_pre_hook(lambda *_: _clip(parameters, clip_norm))
    return optimizer


def _clip(parameters: Sequence[nn.Parameter], clip_norm: float) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, clip_norm)


def combine_optimizers(
    model: DistributedModelParallel, tables: Sequence[Table], config: OptimizerConfig
) -> CombinedOptimizer:
    """Fused table optimizers, the torch optimizers of dense-kernel tables, and the dense part's, as one."""
    by_name = {table.name: table for table in tables}
    dense: dict[str, nn.Parameter] = {}
    groups: dict[str, dict[str, nn.Parameter]] = defaultdict(dict)
    settings_of: dict[str, SparseSettings] = {}
    for key, parameter in in_backward_optimizer_filter(model.named_parameters()):
        if "embedding_bags" not in key:
            dense[key] = parameter
            continue
        settings = table_settings(by_name[key.split(".")[-2]], config.sparse)
        groups[repr(settings)][key] = parameter
        settings_of[repr(settings)] = settings
    optimizers: list[tuple[str, KeyedOptimizer]] = [("fused", model.fused_optimizer)]
    for place, (name, parameters) in enumerate(groups.items()):
        make_touched = partial(_make_touched, settings_of[name])
        optimizers.append((f"tables_{place}", _keyed(parameters, make_touched)))
    optimizers.append(("dense", _keyed(dense, partial(make_dense_optimizer, config.dense))))
    return CombinedOptimizer(optimizers)


def _make_touched(settings: SparseSettings, parameters: Sequence[nn.Parameter]) -> TouchedRows:
    return TouchedRows(parameters, settings)


def _keyed(
    parameters: Mapping[str, nn.Parameter],
    factory: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
) -> KeyedOptimizerWrapper:
    return KeyedOptimizerWrapper(dict(parameters), factory)
