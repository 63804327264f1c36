"""The rules of fbgemm's sparse optimizers in plain torch: from a gradient to the direction of a step.

Source: fbgemm_gpu/codegen/genscript/optimizers.py of fbgemm 1.8. Shapes: R rows, D columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from dlrm_app.config.optimizer import SparseSettings

if TYPE_CHECKING:  # what checks a configuration does not wait for torch
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
Rule: TypeAlias = "Callable[[Tensor, Tensor, State, float, SparseSettings], Tensor]"
"""(weights [R, D], gradient [R, D], state, steps so far, settings) → direction [R, D]; changes the state.

Weight decay is coupled, an L2 penalty in the gradient, or decoupled from the state, as in AdamW (Loshchilov and Hutter
2019, arXiv:1711.05101); fbgemm has one of both for each kind, which is taken where the settings name none.
"""


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
    """The bias is corrected by all steps, not by the row's own."""
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
    """Adam's direction, as long as the row's weights (You et al. 2020, arXiv:1904.00962, a row as a layer)."""
    direction = adam(weights, gradient, state, step, settings)
    return direction * (weights.norm(dim=1, keepdim=True) / direction.norm(dim=1, keepdim=True))


def _second_moment(gradient: Tensor, moment: Tensor) -> Tensor:
    """g² [R, D], or its mean over the row [R, 1] where ``moment`` holds one number a row."""
    squares = gradient.square()
    return squares if moment.shape == squares.shape else squares.mean(dim=1, keepdim=True)
