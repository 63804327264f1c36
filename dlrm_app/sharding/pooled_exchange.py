"""Pooled embeddings between ranks of one machine: from the lookup's rows to the others' columns, each value copied once.

torchrec copies them into a message of their own, sends it, and puts what came beside each other; likewise back. Rank r has
the tables of D_r columns. B rows of a rank's batch, D columns of all ranks.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.dist_data import PooledEmbeddingsAwaitable
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist
from torchrec.distributed.types import Awaitable

from dlrm_app.distributed.shared_memory.group import MachineGroup


def exchange_directly(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Puts ``PooledExchange`` in the place of torchrec's in the sharded tables of ``model``, where ``group`` can do it."""
    if not isinstance(group, MachineGroup):
        return
    for tables in model.modules():
        if isinstance(tables, ShardedEmbeddingBagCollection):
            for output in tables._output_dists:  # a plain list: no submodules
                if type(output) is TwPooledEmbeddingDist and output._codecs is None:
                    output._dist = PooledExchange(output, group)  # which it would make at its first use


class PooledExchange(nn.Module):
    """What torchrec's PooledEmbeddingsAllToAll of ``output`` does, through shared memory."""

    def __init__(self, output: TwPooledEmbeddingDist, group: MachineGroup) -> None:
        super().__init__()
        self._group = group
        self._widths: list[int] = output._dim_sum_per_rank
        self._callbacks = output._callbacks or []

    def forward(
        self, pooled: torch.Tensor, batch_size_per_rank: list[int] | None = None
    ) -> PooledEmbeddingsAwaitable:
        """``pooled`` [all ranks' rows, this rank's columns] → [B, D], once it is waited for."""
        size = self._group.size()
        rows = batch_size_per_rank or [len(pooled) // size] * size
        awaitable = PooledEmbeddingsAwaitable(_Pooled(_InFlight(self._group, rows, self._widths), pooled))
        awaitable.callbacks.extend(self._callbacks)
        return awaitable


class _InFlight:
    """One batch's vectors on their way to the ranks, later their gradients on their way back."""

    def __init__(self, group: MachineGroup, rows: Sequence[int], widths: Sequence[int]) -> None:
        self.group = group
        self.rows = [slice(last - each, last) for each, last in zip(rows, accumulate(rows), strict=True)]
        self.columns = [
            slice(last - each, last) for each, last in zip(widths, accumulate(widths), strict=True)
        ]
        self.shape = rows[group.rank()], sum(widths)
        self.work: dist.Work | None = None
        self.values = torch.empty(0)
        """What is being filled."""

    def send_vectors(self, pooled: torch.Tensor) -> None:
        pooled = pooled.contiguous()
        self.values = pooled.new_empty(self.shape)
        self.work = self.group.exchange(
            [pooled[rows] for rows in self.rows], [self.values[:, columns] for columns in self.columns]
        )

    def send_gradients(self, gradient: torch.Tensor) -> None:
        gradient = gradient.contiguous()
        width = self.columns[self.group.rank()]
        self.values = gradient.new_empty(self.rows[-1].stop, width.stop - width.start)
        self.work = self.group.exchange(
            [gradient[:, columns] for columns in self.columns], [self.values[rows] for rows in self.rows]
        )

    def wait(self) -> torch.Tensor:
        assert self.work is not None
        self.work.wait()
        values, self.values, self.work = self.values, torch.empty(0), None
        return values


class _Pooled(Awaitable[torch.Tensor]):
    def __init__(self, in_flight: _InFlight, pooled: torch.Tensor) -> None:
        super().__init__()
        self._in_flight = in_flight
        self._begun: torch.Tensor = _Send.apply(in_flight, pooled)  # type: ignore[no-untyped-call]

    def _wait_impl(self) -> torch.Tensor:
        arrived: torch.Tensor = _Receive.apply(self._in_flight, self._begun)  # type: ignore[no-untyped-call]
        return arrived


class _Send(torch.autograd.Function):
    """The begin of the way there, and the end of the way back. Its result holds nothing: it stands between the two functions."""

    @staticmethod
    def forward(ctx: FunctionCtx, in_flight: _InFlight, pooled: torch.Tensor) -> torch.Tensor:
        ctx.in_flight = in_flight  # type: ignore[attr-defined]
        in_flight.send_vectors(pooled)
        return pooled.new_empty(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, _: torch.Tensor) -> tuple[None, torch.Tensor]:
        in_flight: _InFlight = ctx.in_flight  # type: ignore[attr-defined]
        gradient = in_flight.wait()
        if get_gradient_division():  # torchrec's: the loss is a mean over all ranks
            gradient.div_(in_flight.group.size())
        return None, gradient


class _Receive(torch.autograd.Function):
    """The end of the way there, and the begin of the way back."""

    @staticmethod
    def forward(ctx: FunctionCtx, in_flight: _InFlight, _: torch.Tensor) -> torch.Tensor:
        ctx.in_flight = in_flight  # type: ignore[attr-defined]
        return in_flight.wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        ctx.in_flight.send_gradients(gradient)  # type: ignore[attr-defined]
        return None, gradient.new_empty(1)
