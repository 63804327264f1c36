"""Messages between all ranks. Every rank must make the same calls in the same order; without a process group a rank is alone.

``group``: all ranks again, over connections of their own, for messages beside those of training.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
BEAT_SECONDS = 1.0


def num_ranks() -> int:
    """The ranks of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def current_rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if num_ranks() > 1 else 0


def new_group(timeout: timedelta | None = None) -> dist.ProcessGroup | None:
    """All ranks over gloo connections of their own; None for a rank that is alone."""
    return dist.new_group(backend="gloo", timeout=timeout) if num_ranks() > 1 else None


def all_gather_stacked(values: torch.Tensor) -> torch.Tensor:
    """[R, …] of every rank's ``values`` […], whose shape is the same on all."""
    if num_ranks() == 1:
        return values.unsqueeze(0)
    gathered = [torch.empty_like(values) for _ in range(num_ranks())]
    dist.all_gather(gathered, values)
    return torch.stack(gathered)


def all_gather_objects(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's ``value``, which is pickled, by rank."""
    values = [value] * num_ranks()
    if num_ranks() > 1:
        dist.all_gather_object(values, value, group)
    return values


def broadcast_from_first(value: T) -> T:
    """The first rank's ``value``, which is pickled, on every rank."""
    values = [value]
    if num_ranks() > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]


def sum_in_rank_order(values: torch.Tensor) -> torch.Tensor:
    """The sum of every rank's ``values``, added in the order of the ranks: the same to the bit on each."""
    return all_gather_stacked(values).sum(0)


def all_reduce_sum(values: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum of every rank's ``values`` in little memory. The order of adding is the backend's: exact for integers."""
    result = values.clone()
    if num_ranks() > 1:
        dist.all_reduce(result, group=group)
    return result


def while_others_wait(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Does ``work``, which may take any time on a rank whose disk is slow; returns once every rank has done its own.

    Ranks tell each other that they are still there, so that one that is lost meanwhile is noticed within the timeout
    of ``group``, and one that only takes long is waited for. ``work`` sends no messages in ``group``.
    """
    if num_ranks() == 1:
        return work()
    done = Event()

    def tell() -> None:
        while all_reduce_sum(torch.tensor(int(not done.wait(BEAT_SECONDS))), group):
            pass

    # of the messages: work may need the device that this thread has chosen
    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(tell)
        try:
            result = work()
        finally:
            done.set()
        told.result()
    return result


def all_to_all(values: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sends the first ``sizes``[0] of ``values`` to rank 0, the next to rank 1, and so on.

    Gives what this rank got, in the order of the senders, and [R] how much from each: sending those sizes of
    answers back brings every answer to where its question stood.
    """
    received_sizes = torch.empty_like(sizes)
    dist.all_to_all_single(received_sizes, sizes)
    received = values.new_empty(int(received_sizes.sum()))
    dist.all_to_all_single(received, values, received_sizes.tolist(), sizes.tolist())
    return received, received_sizes
