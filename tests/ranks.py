"""A function on several processes of this machine that are one group, without a launcher."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def on_ranks(work: Callable[[int], Any], num_ranks: int, folder: Path) -> list[Any]:
    """What ``work(rank)`` gives on each of ``num_ranks`` gloo processes; ``work`` stands in a module by its name."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])  # torch is imported once, not by each process
    results = context.Queue()
    ranks = [
        context.Process(target=_work_on_rank, args=(work, rank, num_ranks, str(folder), results), daemon=True)
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    by_rank = dict(results.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(timeout=60)
    assert [process.exitcode for process in ranks] == [0] * num_ranks
    return [by_rank[rank] for rank in range(num_ranks)]


def _work_on_rank(
    work: Callable[[int], Any], rank: int, num_ranks: int, folder: str, results: "multiprocessing.Queue[Any]"
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks
    )
    results.put((rank, work(rank)))
    dist.barrier()
    dist.destroy_process_group()
