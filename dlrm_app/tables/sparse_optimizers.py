"""The registry of sparse optimizers, with all that the trainer knows of each kind, and their rules in plain torch.

A new kind needs an entry here and a file in conf/optimizer/. The rules are those of fbgemm 1.8
(fbgemm_gpu/codegen/genscript/optimizers.py), from a gradient to the direction of a step. Shapes: R rows, D columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dlrm_app.config.optimizer import SparseSettings, change_settings
from dlrm_app.tables.table import Table

if TYPE_CHECKING:  # checks of a configuration must not wait for torch
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
Rule: TypeAlias = "Callable[[Tensor, Tensor, State, float, SparseSettings], Tensor]"
"""(weights [R, D], gradient [R, D], state, steps so far, settings) → direction [R, D]; changes the state.

Weight decay is coupled (an L2 penalty in the gradient) or decoupled from the state, as in AdamW (Loshchilov and Hutter
2019, arXiv:1711.05101). fbgemm has one of the two for each kind; it is the default.
"""
WEIGHT, ROW = "weight", "row"
"""Units of optimizer state: one float32 value for each weight or each row."""


@dataclass(frozen=True)
class SparseOptimizer:
    """A kind of ``optimizer.sparse``.

    fused: the class in torchrec.optim for fbgemm's kernel, which steps inside the backward pass; a name, because checks
        of a configuration must not wait for torch. All of them clip by max_gradient.
    rule: the same step in plain torch, for tables with the dense kernel; without clipping.
    state: name → WEIGHT or ROW, in fbgemm's order: momentum1, momentum2.
    arguments: the settings that the fused class takes, besides lr, weight_decay and max_gradient.
    devices: the devices with a fused kernel in fbgemm.
    decay_devices: the devices on which the fused kernel applies weight_decay; on others fbgemm silently ignores it.
    decay_mode: fbgemm's WeightDecayMode to pass with weight_decay, if one is needed.
    weight_decay_mode: fbgemm's mode, and the default where optimizer.sparse.weight_decay_mode is null.
    scales_by_weights: a step is as long as the row's weights, so a row of zeros never moves.
    """

    fused: str
    rule: Rule
    state: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ("eps",)
    devices: tuple[str, ...] = ("cpu", "cuda")
    decay_devices: tuple[str, ...] = ("cuda",)
    decay_mode: str | None = None
    weight_decay_mode: str = "decoupled"
    scales_by_weights: bool = False

    @property
    def reduces_over_rows(self) -> bool:
        """True if a step depends on sums over a row (or over a shard's part of it, if rows are split)."""
        return self.scales_by_weights or ROW in self.state.values()

    def state_name(self, fused_name: str) -> str:
        """Turns fbgemm's name of a state into ours: momentum2 → exp_avg_sq."""
        names = {f"momentum{number}": name for number, name in enumerate(self.state, start=1)}
        return names.get(fused_name, fused_name)

    def state_bytes(self, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of state for shards of ``rows`` × ``columns`` [S]: (state per weight, state per row)."""
        sizes = list(self.state.values())
        return 4 * sizes.count(WEIGHT) * rows * columns, 4 * sizes.count(ROW) * rows


def sgd(weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings) -> Tensor:
    return gradient + settings.weight_decay * weights


def adagrad(weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings) -> Tensor:
    is_coupled = settings.weight_decay_mode != "decoupled"
    decay = settings.weight_decay * weights
    gradient = gradient + decay if is_coupled else gradient
    state["sum"] += _second_moment(gradient, state["sum"])
    direction = gradient / (state["sum"].sqrt() + settings.eps)
    return direction if is_coupled else direction + decay


def adam(weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings) -> Tensor:
    """Adam, with a bias correction that counts all steps, not only those of the row."""
    is_coupled = settings.weight_decay_mode == "coupled"
    decay = settings.weight_decay * weights
    gradient = gradient + decay if is_coupled else gradient
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.lerp_(gradient, 1 - settings.beta1)
    second.lerp_(_second_moment(gradient, second), 1 - settings.beta2)
    mean = first / (1 - settings.beta1**step)
    deviation = (second / (1 - settings.beta2**step)).sqrt()
    direction = mean / (deviation + settings.eps)
    return direction if is_coupled else direction + decay


def lamb(weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings) -> Tensor:
    """Adam's direction, scaled to the norm of the row's weights (You et al. 2020, arXiv:1904.00962; layer = row)."""
    direction = adam(weights, gradient, state, step, settings)
    return direction * (weights.norm(dim=1, keepdim=True) / direction.norm(dim=1, keepdim=True))


def _second_moment(gradient: Tensor, moment: Tensor) -> Tensor:
    """g² [R, D], or its mean over the row [R, 1] if ``moment`` holds one number a row."""
    squares = gradient.square()
    return squares if moment.shape == squares.shape else squares.mean(dim=1, keepdim=True)


ADAM_ARGUMENTS = ("eps", "beta1", "beta2")

_ON_CUDA = ("cuda",)
_MOMENTS = {"exp_avg": WEIGHT, "exp_avg_sq": WEIGHT}
_ROWWISE_MOMENTS = {"exp_avg": WEIGHT, "exp_avg_sq": ROW}

SPARSE_OPTIMIZERS = {
    "sgd": SparseOptimizer("SGD", sgd, arguments=(), decay_devices=(), weight_decay_mode="coupled"),
    "adagrad": SparseOptimizer(
        "Adagrad", adagrad, {"sum": WEIGHT}, decay_devices=(), weight_decay_mode="coupled"
    ),
    # fbgemm's default mode is no weight decay; on CPU it applies weight_decay only to shared tables
    "rowwise_adagrad": SparseOptimizer(
        "RowWiseAdagrad", adagrad, {"sum": ROW}, decay_mode="L2", weight_decay_mode="coupled"
    ),
    "adam": SparseOptimizer("Adam", adam, _MOMENTS, ADAM_ARGUMENTS, _ON_CUDA),
    "partial_rowwise_adam": SparseOptimizer(
        "PartialRowWiseAdam", adam, _ROWWISE_MOMENTS, ADAM_ARGUMENTS, _ON_CUDA
    ),
    "lamb": SparseOptimizer("LAMB", lamb, _MOMENTS, ADAM_ARGUMENTS, _ON_CUDA, scales_by_weights=True),
    "partial_rowwise_lamb": SparseOptimizer(
        "PartialRowWiseLAMB", lamb, _ROWWISE_MOMENTS, ADAM_ARGUMENTS, _ON_CUDA, scales_by_weights=True
    ),
}


FROZEN = SparseSettings(kind="sgd", lr=0.0)
"""The settings of tables that are not trained: SGD keeps no state, and a rate of 0 changes no weight."""


def table_settings(table: Table, settings: SparseSettings) -> SparseSettings:
    """The sparse optimizer's settings, with the changes that ``table`` makes."""
    if table.is_frozen:
        return FROZEN
    return change_settings(settings, table.optimizer)


def optimizer_kinds(tables: Sequence[Table], settings: SparseSettings) -> Mapping[str, str]:
    """Table name → the kind of its optimizer."""
    return {table.name: table_settings(table, settings).kind for table in tables}
