"""All ranks as a process group whose all-to-all goes through shared memory where they are on one machine, without GPUs.

gloo carries such messages over loopback, by threads of its own that take the cores from those that compute
(docs/experiments.md). Everything else stays with it.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.distributed.shared_memory.rings import Message, Rings, open_rings

logger = logging.getLogger(__name__)
NAME = "shared_memory"
_LITTLE = 4096
"""Bytes that cost less than a second message."""


def machine_group(runtime: Runtime) -> dist.ProcessGroup:
    """All ranks; every rank must call it."""
    world = dist.GroupMember.WORLD
    assert world is not None
    is_one_machine = runtime.world_size == runtime.local_world_size > 1
    return _shared(world) if is_one_machine and runtime.device.type == "cpu" else world


@cache
def _shared(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """``world`` itself where there is no shared memory for it."""
    group = dist.new_group(backend=NAME)
    assert isinstance(group, MachineGroup)
    if group.rings is None:
        logger.info("ranks exchange over gloo: /dev/shm has no room for what they would share")
        return world
    return group


def begin_sum(values: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Begins to put the sum of every rank's ``values``, the same on each to the bit, in their place."""
    if isinstance(group, MachineGroup):
        return group.begin_sum(values)
    work = dist.all_reduce(values, group=group, async_op=True)
    assert work is not None
    return work


class MachineGroup(dist.ProcessGroup):
    """``rings`` for all-to-all, the default group for the rest."""

    def __init__(self, store: dist.Store, rank: int, num_ranks: int, timeout: timedelta) -> None:
        super().__init__(rank, num_ranks)  # type: ignore[call-arg]
        self.rings: Rings | None = open_rings(store, rank, num_ranks, timeout)

    def _get_backend_name(self) -> str:
        """Of tensors that have no shard on a rank torch 2.13 says that they are on a GPU, unless the group is gloo's."""
        return "gloo"

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        options: Any = None,
    ) -> dist.Work:
        """What ``dist.all_to_all_single`` calls; no splits: equal ones."""
        received = torch.split(output, list(output_split_sizes) or len(output) // self.size())
        sent = torch.split(input.contiguous(), list(input_split_sizes) or len(input) // self.size())
        return self.exchange(sent, received)

    def exchange(
        self,
        sent: Sequence[torch.Tensor],
        received: Sequence[torch.Tensor],
        then: Callable[[], object] | None = None,
    ) -> dist.Work:
        """Begins to send ``sent[r]`` to rank r and to take ``received[r]`` from it, as ``Rings.begin`` has them.

        ``then`` is called in the first wait, once all is there.
        """
        assert self.rings is not None
        return _Arrival(self.rings, self.rings.begin(sent, received), then)

    def begin_sum(self, values: torch.Tensor) -> dist.Work:
        """The sum of every rank's ``values`` [N], added in the order of the ranks, in their place.

        Two ranks send each other all of it, and so do more of them if it is little. Otherwise each rank adds up a piece,
        which the others get when they wait.
        """
        if self.size() == 2 or values.nbytes <= _LITTLE:
            all_of = [torch.empty_like(values) for _ in range(self.size())]
            return self.exchange([values] * self.size(), all_of, lambda: _add_up(all_of, values))
        pieces = values.tensor_split(self.size())
        received = [torch.empty_like(pieces[self.rank()]) for _ in pieces]

        def share() -> None:
            _add_up(received, received[0])
            self.exchange([received[0]] * len(pieces), pieces).wait()

        return self.exchange(pieces, received, share)


def _add_up(parts: Sequence[torch.Tensor], total: torch.Tensor) -> None:
    torch.add(parts[0], parts[1], out=total)
    for part in parts[2:]:
        total.add_(part)


class _Arrival(dist.Work):
    def __init__(self, rings: Rings, message: Message, then: Callable[[], object] | None) -> None:
        super().__init__()
        self._rings, self._message, self._then = rings, message, then

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._rings.finish(self._message)
        then, self._then = self._then, None
        if then is not None:
            then()
        return True

    def is_completed(self) -> bool:
        return self._message.is_done


def _delegate(name: str) -> Any:
    def method(self: MachineGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(dist.GroupMember.WORLD, name)(*arguments, **options)

    return method


for _name in (
    *("allgather", "all_gather_single", "allgather_coalesced", "all_gather_single_coalesced", "gather"),
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("reduce_scatter_single_coalesced", "alltoall", "barrier", "broadcast", "scatter", "send", "recv"),
):
    setattr(MachineGroup, _name, _delegate(_name))


def _create(store: dist.Store, rank: int, num_ranks: int, timeout: timedelta) -> Any:
    """What ``dist.new_group`` calls. torchrec makes groups of some ranks with the backend of the group of all."""
    if num_ranks < dist.get_world_size():
        return dist.ProcessGroupGloo(store, rank, num_ranks, timeout)
    return MachineGroup(store, rank, num_ranks, timeout)


dist.Backend.register_backend(NAME, _create, devices="cpu")
