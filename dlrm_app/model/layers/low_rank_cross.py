"""DCNv2's low-rank cross layers (Wang et al. 2021, arXiv:2008.13535) with fewer passes over the memory than torchrec's.

Shapes: B batch rows, I inputs, R the rank.
"""

import torch
from torch import nn
from torchrec.modules.crossnet import LowRankCrossNet

from dlrm_app.model.layers.linear import linear


class LowRankCross(nn.Module):
    """``net``, [B, I] → [B, I], with its own parameters."""

    def __init__(self, net: LowRankCrossNet) -> None:
        super().__init__()
        self.W_kernels, self.V_kernels, self.bias = net.W_kernels, net.V_kernels, net.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """x₀ ⊙ (W V xₗ + b) + xₗ, layer by layer; the bias is added within the product, the rest in one pass.

        Not under autocast, where that pass would mix bfloat16 and float32, which takes longer than what it saves.
        """
        outputs = inputs
        if torch.is_autocast_enabled(inputs.device.type):
            for down, up, bias in zip(self.V_kernels, self.W_kernels, self.bias, strict=True):
                product = nn.functional.linear(nn.functional.linear(outputs, down), up)
                outputs = inputs * (product + bias) + outputs
            return outputs
        for down, up, bias in zip(
            self.V_kernels, self.W_kernels, self.bias, strict=True
        ):  # [R, I], [I, R], [I]
            outputs = torch.addcmul(outputs, inputs, linear(linear(outputs, down), up, bias))
        return outputs
