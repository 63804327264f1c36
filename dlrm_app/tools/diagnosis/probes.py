"""Tries torch and its companions in a separate process, so that a crash, a hang or an undefined symbol is a result.

This file is also the script of that process: ``probes.py load MODULE``, ``probes.py operators DEVICE`` and
``probes.py exchange BACKEND NUM_PROCESSES`` print their results as JSON.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

TOLERANCE = 1e-5
Facts: TypeAlias = dict[str, Any]
"""A result as JSON."""


@dataclass(frozen=True)
class Answer:
    """The facts that a probe printed as JSON on its last line, or the reason (``fault``) why it did not."""

    facts: Facts
    fault: str | None = None


def probe(name: str, *arguments: str, timeout: float, script: str = __file__) -> Answer:
    """Runs the probe ``name`` with this Python, for at most ``timeout`` seconds."""
    process = subprocess.Popen(
        [sys.executable, script, name, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,  # so that a hanging probe is ended together with its children
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return Answer({}, f"no answer within {timeout:g} s")
    finally:
        _end_group(process)
    if process.returncode != 0:
        return Answer({}, _describe(process.returncode, errors))
    try:
        return Answer(json.loads(output.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return Answer({}, f"an unreadable answer: {output[-200:]!r}")


def _end_group(process: "subprocess.Popen[str]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # the usual case: all have ended
    process.wait()


def _describe(code: int, errors: str) -> str:
    if code < 0:
        return f"crashed with {signal.Signals(-code).name}"
    raised = re.findall(r"^[\w.]*(?:Error|Exception): .*", errors, re.MULTILINE)
    lines = raised or errors.strip().splitlines() or ["no message"]
    return lines[0 if raised else -1][:300]  # the first of chained errors is the cause


def load(name: str) -> Facts:
    """Imports the module ``name``; for torch, also lists the devices that it sees."""
    module = importlib.import_module(name)
    if name != "torch":
        return {}
    gpus = [_describe_gpu(module.cuda, index) for index in range(module.cuda.device_count())]
    why_no_gpu = None
    if module.version.cuda and not gpus:
        try:
            module.cuda.init()
        except (RuntimeError, AssertionError) as error:
            why_no_gpu = str(error).splitlines()[0]
    return {"cuda": module.version.cuda, "gpus": gpus, "why_no_gpu": why_no_gpu}


def _describe_gpu(cuda: Any, index: int) -> Facts:
    free, total = cuda.mem_get_info(index)
    capability = cuda.get_device_capability(index)
    return {"name": cuda.get_device_name(index), "free": free, "total": total, "capability": capability}


def operators(device: str) -> Facts:
    """Takes a step of a table on ``device`` with fbgemm and with torch; returns the largest difference."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rows, dim, batch, learning_rate = 100, 16, 32, 0.5
    torch.manual_seed(0)
    is_cpu = device == "cpu"
    place = EmbeddingLocation.HOST if is_cpu else EmbeddingLocation.DEVICE
    compute = ComputeDevice.CPU if is_cpu else ComputeDevice.CUDA
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, place, compute)],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=learning_rate,
        device=torch.device(device),
    )
    bag = torch.nn.EmbeddingBag(rows, dim, mode="sum", device=device)
    (weight,) = table.split_embedding_weights()
    weight.data.copy_(bag.weight.data)
    lengths = torch.randint(0, 4, (batch,))  # empty bags too
    ids = torch.randint(0, rows, (int(lengths.sum()),), device=device)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device)
    pooled, expected = table(ids, offsets), bag(ids, offsets[:-1])
    gradient = torch.randn_like(expected)
    torch.autograd.backward([pooled, expected], [gradient, gradient])
    assert bag.weight.grad is not None
    (weight,) = table.split_embedding_weights()
    with torch.no_grad():
        updated = bag.weight - learning_rate * bag.weight.grad
        difference = max(float((pooled - expected).abs().max()), float((weight - updated).abs().max()))
    result = f"a step of a table differs from nn.EmbeddingBag by {difference:.0e}"
    return {"result": result, "is_right": difference < TOLERANCE}


def exchange(backend: str, num_processes: str) -> Facts:
    """Tries all_reduce and all_to_all between processes."""
    from torch.multiprocessing.spawn import spawn

    num_ranks = int(num_processes)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (backend, num_ranks, str(Path(folder) / "store"))
        spawn(_exchange, arguments, nprocs=num_ranks)  # type: ignore[no-untyped-call]  # torch has no types for it
    return {"result": f"all_reduce and all_to_all, {num_ranks} process(es)"}


def _exchange(rank: int, backend: str, num_ranks: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=60)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=num_ranks, timeout=timeout
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


PROBES: dict[str, Callable[..., Facts]] = {"load": load, "operators": operators, "exchange": exchange}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])))
