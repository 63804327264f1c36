"""One optimizer for all: tables updated inside the backward pass where fbgemm can, everything else beside it."""

import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim import optimizers as fused_optimizers
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from dlrm_app.config.optimizer import OptimizerConfig, SparseSettings
from dlrm_app.tables import Table

FUSED_CLASSES = {
    "sgd": fused_optimizers.SGD,
    "adagrad": fused_optimizers.Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
    "adam": fused_optimizers.Adam,
}
FUSED_KINDS = {"cpu": {"sgd", "adagrad", "rowwise_adagrad"}, "cuda": set(FUSED_CLASSES)}


def table_settings(table: Table, settings: SparseSettings) -> SparseSettings:
    """The sparse optimizer's settings with what ``table`` changes of them."""
    return dataclasses.replace(settings, **table.optimizer)


def dense_kernel_tables(
    tables: Sequence[Table], settings: SparseSettings, device: torch.device
) -> frozenset[str]:
    """Names of the tables whose optimizer fbgemm has not fused for ``device``: a torch optimizer steps them."""
    fused = FUSED_KINDS[device.type]
    return frozenset(table.name for table in tables if table_settings(table, settings).kind not in fused)


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
    arguments: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.kind != "sgd":
        arguments["eps"] = settings.eps
    if settings.kind == "adam":
        arguments |= {"beta1": settings.beta1, "beta2": settings.beta2}
    return arguments


def make_torch_optimizer(
    settings: SparseSettings, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """A torch optimizer over ``parameters``, as the dense part and tables with the dense kernel use it."""
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.kind == "sgd":
        return torch.optim.SGD(parameters, momentum=getattr(settings, "momentum", 0.0), **common)
    if settings.kind == "adagrad":
        return torch.optim.Adagrad(parameters, eps=settings.eps, **common)
    if settings.kind == "rowwise_adagrad":
        return RowWiseAdagrad(parameters, eps=settings.eps, **common)
    adam = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return adam(parameters, eps=settings.eps, betas=(settings.beta1, settings.beta2), **common)


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
        optimizers.append((f"tables_{place}", _keyed(parameters, settings_of[name])))
    optimizers.append(("dense", _keyed(dense, config.dense)))
    return CombinedOptimizer(optimizers)


def _keyed(parameters: Mapping[str, nn.Parameter], settings: SparseSettings) -> KeyedOptimizerWrapper:
    factory: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] = lambda given: make_torch_optimizer(  # noqa: E731 - torchrec wants a factory here
        settings, given
    )
    return KeyedOptimizerWrapper(dict(parameters), factory)
