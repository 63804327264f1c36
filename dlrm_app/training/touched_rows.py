"""fbgemm's sparse optimizers in plain torch, for the tables that it cannot step inside the backward pass.

They step only the rows that a batch touches, as fbgemm's fused kernels do, so that device and sharding change the
speed of an optimizer but not its rule. Source: fbgemm_gpu/codegen/genscript/optimizers.py of fbgemm 1.8.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dlrm_app.config.optimizer import SparseSettings

State = dict[str, Tensor]


def _sgd(weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings) -> Tensor:
    return gradient + settings.weight_decay * weights


def _adagrad(
    weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings
) -> Tensor:
    gradient = gradient + settings.weight_decay * weights
    state["sum"] += _second_moment(gradient, state["sum"])
    return gradient / (state["sum"].sqrt() + settings.eps)


def _adam(weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings) -> Tensor:
    """Weight decay beside the moments, as in AdamW; the bias is corrected by all steps, not by the row's own."""
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.lerp_(gradient, 1 - settings.beta1)
    second.lerp_(_second_moment(gradient, second), 1 - settings.beta2)
    mean = first / (1 - settings.beta1**step)
    deviation = (second / (1 - settings.beta2**step)).sqrt()
    return mean / (deviation + settings.eps) + settings.weight_decay * weights


def _lamb(weights: Tensor, gradient: Tensor, state: State, step: float, settings: SparseSettings) -> Tensor:
    """Adam's direction, as long as the row's weights (You et al. 2020, arXiv:1904.00962, a row as a layer)."""
    direction = _adam(weights, gradient, state, step, settings)
    return direction * (weights.norm(dim=1, keepdim=True) / direction.norm(dim=1, keepdim=True))


def _second_moment(gradient: Tensor, moment: Tensor) -> Tensor:
    """g² [R, D], or its mean over the row [R, 1] where ``moment`` holds one number a row."""
    squares = gradient.square()
    return squares if moment.shape == squares.shape else squares.mean(dim=1, keepdim=True)


Rule = Callable[[Tensor, Tensor, State, float, SparseSettings], Tensor]
# rule, state as wide as the weights, state of one number a row
RULES: dict[str, tuple[Rule, tuple[str, ...], tuple[str, ...]]] = {
    "sgd": (_sgd, (), ()),
    "adagrad": (_adagrad, ("sum",), ()),
    "rowwise_adagrad": (_adagrad, (), ("sum",)),
    "adam": (_adam, ("exp_avg", "exp_avg_sq"), ()),
    "partial_rowwise_adam": (_adam, ("exp_avg",), ("exp_avg_sq",)),
    "lamb": (_lamb, ("exp_avg", "exp_avg_sq"), ()),
    "partial_rowwise_lamb": (_lamb, ("exp_avg",), ("exp_avg_sq",)),
}


class TouchedRows(torch.optim.Optimizer):
    """Steps the rows of tables [rows, D] whose gradient is not all zero, by the rule of ``settings.kind``."""

    def __init__(self, parameters: Iterable[nn.Parameter], settings: SparseSettings) -> None:
        super().__init__(parameters, {"lr": settings.lr})
        self._settings = settings
        self._rule, wide, narrow = RULES[settings.kind]
        for group in self.param_groups:
            for table in group["params"]:
                state: State = {name: torch.zeros_like(table) for name in wide}
                state |= {name: table.new_zeros(len(table), 1) for name in narrow}
                self.state[table] = {"step": torch.tensor(0.0), **state}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # the pipeline gives no closure
        """One step with each table's ``grad`` [rows, D]."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and len(table):  # a rank may hold none of a table's rows
                    self._step_table(table, table.grad, group["lr"])

    def _step_table(self, table: nn.Parameter, gradient: Tensor, lr: float) -> None:
        count, moments = self.state[table]["step"], dict(self.state[table])
        count += 1
        del moments["step"]
        rows = gradient.norm(dim=1).nonzero().squeeze(1)  # [R]; count_nonzero takes 20 times as long on CPU
        touched = {name: moment[rows] for name, moment in moments.items()}
        direction = self._rule(table[rows], gradient[rows], touched, count.item(), self._settings)
        table.index_add_(0, rows, direction, alpha=-lr)
        for name, moment in touched.items():
            moments[name].index_copy_(0, rows, moment)
