"""Messages between all ranks.

Every rank must make the same calls in the same order. Without a process group there is one rank.

``group``: all ranks over separate connections, for messages sent at the same time as those of training.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from threading import Event
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
BEAT_SECONDS = 1.0


_is_alone: ContextVar[bool] = ContextVar("is_alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Sends no messages in the block, though the process may belong to a group, in which another thread may train."""
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


def num_ranks() -> int:
    """The number of ranks in the process group; 1 without one, and for work that is done ``alone``."""
    if _is_alone.get() or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


def current_rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if num_ranks() > 1 else 0


def new_group(timeout: timedelta | None = None) -> dist.ProcessGroup | None:
    """Makes a group of all ranks over separate gloo connections; None if there is one rank."""
    if num_ranks() == 1:
        return None
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
    _groups.append(group)
    return group


_groups: list[dist.ProcessGroup] = []
"""Groups of ``new_group`` that are open."""


def leave_groups() -> None:
    """Closes the groups that ``new_group`` made, once nothing waits in them. Every rank must call it."""
    while _groups:
        dist.destroy_process_group(_groups.pop())


def all_gather_stacked(values: torch.Tensor) -> torch.Tensor:
    """Every rank's ``values`` […], stacked as [P, …] for P ranks. The shape must be the same on all ranks."""
    if num_ranks() == 1:
        return values.unsqueeze(0)
    gathered = [torch.empty_like(values) for _ in range(num_ranks())]
    dist.all_gather(gathered, values)
    return torch.stack(gathered)


def all_gather_objects(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's ``value``, by rank. Values are pickled."""
    values = [value] * num_ranks()
    if num_ranks() > 1:
        dist.all_gather_object(values, value, group)
    return values


def broadcast_from_first(value: T, group: dist.ProcessGroup | None = None) -> T:
    """The first rank's ``value``, on every rank. The value is pickled."""
    values = [value]
    if num_ranks() > 1:
        dist.broadcast_object_list(values, src=0, group=group)
    return values[0]


def sum_in_rank_order(values: torch.Tensor) -> torch.Tensor:
    """Adds every rank's ``values`` in the order of the ranks: the sum is the same to the bit on each."""
    return all_gather_stacked(values).sum(0)


def all_reduce_sum(values: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum of every rank's ``values``, using little memory.

    The backend chooses the order of adding; integers are exact.
    """
    result = values.clone()
    if num_ranks() > 1:
        dist.all_reduce(result, group=group)
    return result


def while_others_wait(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Runs ``work``, which may take long on a rank with a slow disk; returns once every rank has finished its own.

    Ranks send each other heartbeats. So a lost rank is noticed within the timeout of ``group``, and a slow one is
    waited for. ``work`` must not send messages in ``group``.
    """
    if num_ranks() == 1:
        return work()
    done = Event()

    def beat() -> None:
        while all_reduce_sum(torch.tensor(int(not done.wait(BEAT_SECONDS))), group):
            pass

    # for the heartbeats: ``work`` stays in this thread, whose current device it may need
    with ThreadPoolExecutor(1) as thread:
        beats = thread.submit(beat)
        try:
            result = work()
        finally:
            done.set()
        beats.result()
    return result


def all_to_all(values: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sends the first ``sizes``[0] of ``values`` to rank 0, the next to rank 1, and so on.

    Returns the received values, in the order of the senders, and the number from each of P senders [P]. Sending answers
    back with those sizes puts every answer at the place of its question.
    """
    received_sizes = torch.empty_like(sizes)
    dist.all_to_all_single(received_sizes, sizes)
    received = values.new_empty(int(received_sizes.sum()))
    dist.all_to_all_single(received, values, received_sizes.tolist(), sizes.tolist())
    return received, received_sizes
