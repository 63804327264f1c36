"""The dense part's gradients averaged over ranks of CPUs: one message, which travels while the tables are updated."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torchrec.distributed.model_parallel import DataParallelWrapper, DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

from dlrm_app.distributed.shared_memory.group import begin_sum


class MeanGradients(DataParallelWrapper):
    """In place of DistributedDataParallel, which waits for a message before it computes on, and for more of them."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """From now on every backward pass averages the gradients of what is not sharded."""
        assert env.process_group is not None
        sharded = set(DistributedModelParallel._sharded_parameter_names(dmp.module))
        _Mean([p for name, p in dmp.named_parameters() if name not in sharded], env.process_group)


class _Mean:
    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        self._parameters, self._group = parameters, group
        self._flat = torch.zeros(sum(each.numel() for each in parameters))
        pieces = torch.split(self._flat, [each.numel() for each in parameters])
        self._means = [piece.view_as(each) for piece, each in zip(pieces, parameters, strict=True)]
        self._num_ready = 0
        self._work: dist.Work | None = None
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._count)  # type: ignore[no-untyped-call]

    def _count(self, _: Any) -> None:
        if self._num_ready == 0:
            Variable._execution_engine.queue_callback(self._finish)
        self._num_ready += 1
        if self._num_ready == len(self._parameters):
            self._send()

    def _send(self) -> None:
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in self._parameters]
        torch.cat([each.reshape(-1) for each in gradients], out=self._flat)
        self._flat *= 1 / self._group.size()
        self._work = begin_sum(self._flat, self._group)

    def _finish(self) -> None:
        """The end of the backward pass."""
        if self._work is None:  # some had no part in the loss
            self._send()
        assert self._work is not None
        self._work.wait()
        for mean, parameter in zip(self._means, self._parameters, strict=True):
            parameter.grad = mean
        self._work, self._num_ready = None, 0
