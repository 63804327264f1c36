"""Steps whose loss is no finite number on some rank, left out on all of them before anything of the model changes."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from dlrm_app.distributed.runtime import Runtime

TIMEOUT = timedelta(minutes=10)


class LossGate(nn.Module):
    """Passes a training step's loss on if it is finite on every rank, and else one that reaches no parameter.

    A backward pass from there computes nothing: no table is updated inside it, no gradient arises, and optimizers
    leave what has no gradient as it is. Multiplying by zero would not do: 0 · inf is nan in the gradients, and
    moments and weight decay move weights under gradients of zero too.

    A module, so that the pipelines, which trace the model, take it as a whole. It waits for the loss and, with
    several ranks, for a message between them, in every step.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        several = runtime.world_size > 1
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if several else None
        self.has_closed = False
        """Whether the last step was left out; the same on every rank."""

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        """[] → []; evaluation passes unchanged."""
        if not self.training:
            return loss
        is_bad = torch.tensor([not bool(torch.isfinite(loss))], dtype=torch.int32)
        if self._group is not None:
            dist.all_reduce(is_bad, dist.ReduceOp.MAX, group=self._group)
        self.has_closed = bool(is_bad.item())
        return torch.zeros_like(loss).requires_grad_() if self.has_closed else loss


def place_gate(model: DistributedModelParallel, runtime: Runtime) -> LossGate:
    """Puts a gate behind the loss of ``model``, a sharded ClickTask. Every rank must call it, before the first step."""
    gate = LossGate(runtime)
    model.module.gate = gate
    return gate
