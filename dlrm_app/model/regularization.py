"""Batch norm and dropout in the MLPs, for recipes that train on few rows or for several epochs.

Shapes: B batch rows of this rank, C a layer's outputs.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F
from torchrec.modules.mlp import Perceptron

from dlrm_app.config.train import ModelConfig
from dlrm_app.distributed.collectives import all_reduce_sum, num_ranks

EPS, MOMENTUM = 1e-5, 0.1
"""torch's defaults for batch norm."""


def regularize(model: nn.Module, config: ModelConfig) -> nn.Module:
    """Adds batch norm and dropout from ``config`` to every linear layer with ReLU in both MLPs. Returns ``model``."""
    for name, child in model.named_children():
        is_bottom = name == "dense_arch" and config.bottom_dropout is not None
        _regularize(child, config.batch_norm, (config.bottom_dropout if is_bottom else config.dropout) or 0.0)
    return model


def _regularize(model: nn.Module, batch_norm: bool, dropout: float) -> None:
    for name, child in list(model.named_children()) if batch_norm or dropout else ():
        if type(child) is Perceptron and child._activation_fn is torch.relu:
            setattr(model, name, RegularizedPerceptron(child, batch_norm, dropout))
        else:
            _regularize(child, batch_norm, dropout)


class RegularizedPerceptron(nn.Module):
    """Linear layer, batch norm, ReLU, dropout: the order of FuxiCTR's MLP_Block, which BARS' recipes use."""

    def __init__(self, perceptron: Perceptron, batch_norm: bool, dropout: float) -> None:
        super().__init__()
        self._linear = perceptron._linear
        self._norm = SyncedBatchNorm(perceptron._out_size) if batch_norm else nn.Identity()
        self._dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[B, I] → [B, C]."""
        return self._dropout(torch.relu(self._norm(self._linear(inputs))))


class SyncedBatchNorm(nn.Module):
    """BatchNorm1d over the rows of all ranks, so that results do not depend on their number; also on CPU and with gloo.

    Ioffe and Szegedy 2015, arXiv:1502.03167. nn.SyncBatchNorm does the same on GPUs only. All ranks must have
    as many rows.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[B, C] → [B, C] float32; uses the batch's moments in training, and the running moments otherwise."""
        values = values.float()
        if not self.training or num_ranks() == 1:
            return F.batch_norm(
                values,
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                self.training,
                MOMENTUM,
                EPS,
            )
        wide = values.double()  # the difference of squares would lose its digits in float32
        sums = _SumOverRanks.apply(torch.stack([wide.sum(0), wide.square().sum(0)]))  # type: ignore[no-untyped-call]
        count = len(values) * num_ranks()
        mean, mean_square = (sums / count).unbind()
        variance = mean_square - mean.square()
        with torch.no_grad():
            self.running_mean.lerp_(mean.float(), MOMENTUM)
            self.running_var.lerp_((variance * count / (count - 1)).float(), MOMENTUM)
        scale = self.weight * (variance + EPS).rsqrt().float()
        return (values - mean.float()) * scale + self.bias


class _SumOverRanks(torch.autograd.Function):
    """Sums over all ranks. Every rank's loss depends on the sums, so gradients are summed too."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: torch.Tensor) -> torch.Tensor:
        return all_reduce_sum(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return all_reduce_sum(gradient)
