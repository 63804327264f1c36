"""all_reduce and all_to_all between processes: ``exchange.py BACKEND NUM_PROCESSES``."""

import json
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def main() -> None:
    backend, num_processes = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        arguments = (backend, num_processes, store)
        spawn(exchange, arguments, nprocs=num_processes)  # type: ignore[no-untyped-call]  # torch has no types for it
    print(json.dumps({"processes": num_processes}))


def exchange(rank: int, backend: str, num_ranks: int, store: str) -> None:
    if backend == "nccl":
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60)
    )
    total = torch.tensor([rank + 1.0], device=device)
    dist.all_reduce(total)
    sent = torch.arange(num_ranks, device=device) + 10 * rank
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    expected = 10 * torch.arange(num_ranks, device=device) + rank
    dist.barrier()
    dist.destroy_process_group()
    if total.item() != num_ranks * (num_ranks + 1) / 2 or not torch.equal(received, expected):
        raise RuntimeError(f"wrong numbers: all_reduce gave {total.item()}, all_to_all {received.tolist()}")


if __name__ == "__main__":
    main()
