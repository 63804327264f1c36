"""What every rank must know alike."""

import torch
import torch.distributed as dist


def num_ranks() -> int:
    """The ranks of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_rank() -> int:
    """This process's place among the ranks; 0 without a process group."""
    return dist.get_rank() if num_ranks() > 1 else 0


def gather(values: torch.Tensor) -> torch.Tensor:
    """[R, …] of every rank's ``values`` […], whose shape is the same on all."""
    if num_ranks() == 1:
        return values.unsqueeze(0)
    gathered = [torch.empty_like(values) for _ in range(num_ranks())]
    dist.all_gather(gathered, values)
    return torch.stack(gathered)


def total(values: torch.Tensor) -> torch.Tensor:
    """The sum of every rank's ``values``, added in the order of the ranks: the same to the bit on each."""
    return gather(values).sum(0)


def add_up(counts: torch.Tensor) -> torch.Tensor:
    """The sum of every rank's ``counts``, in little memory; for integers, whose sum no order changes."""
    sums = counts.clone()
    if num_ranks() > 1:
        dist.all_reduce(sums)
    return sums


def send(values: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sends the first ``sizes``[0] of ``values`` to rank 0, the next to rank 1, and so on.

    Gives what this rank got, in the order of the senders, and [R] how much from each: sending those sizes of
    answers back brings every answer to where its question stood.
    """
    received_sizes = torch.empty_like(sizes)
    dist.all_to_all_single(received_sizes, sizes)
    received = values.new_empty(int(received_sizes.sum()))
    dist.all_to_all_single(received, values, received_sizes.tolist(), sizes.tolist())
    return received, received_sizes
