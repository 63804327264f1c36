"""What this rank's machine can do, measured: matrix products by precision, memory, exchange with the other ranks."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.sharding.estimate.machine import Machine

ROWS, WIDTH = 2048, 512
"""A product of [ROWS, WIDTH] and [WIDTH, WIDTH], as an MLP's layers are."""
COPIED = 64 * 2**20
SENT = 4 * 2**20
"""Bytes: copied from place to place; sent from each rank to all."""
SECONDS = 0.3
"""Each is repeated for so long."""


def measure_machine(runtime: Runtime) -> Machine:
    """All ranks measure at once, as they train. Every rank must call it."""
    return Machine(
        flops={"fp32": gemm_rate(torch.float32, runtime), "bf16": gemm_rate(torch.bfloat16, runtime)},
        memory=memory_rate(runtime),
        exchange=exchange_rate(runtime),
        device=runtime.device.type,
    )


def gemm_rate(kind: torch.dtype, runtime: Runtime) -> float:
    """Flops a second of matrix products."""
    factors = [torch.randn(rows, WIDTH, device=runtime.device).to(kind) for rows in (ROWS, WIDTH)]
    result = torch.empty(ROWS, WIDTH, dtype=kind, device=runtime.device)
    seconds = median_seconds(lambda: torch.mm(*factors, out=result), runtime)
    return 2.0 * ROWS * WIDTH * WIDTH / seconds


def memory_rate(runtime: Runtime) -> float:
    """Bytes read and written a second."""
    source = torch.ones(COPIED // 4, device=runtime.device)
    target = torch.empty_like(source)
    return 2 * COPIED / median_seconds(lambda: target.copy_(source), runtime)


def exchange_rate(runtime: Runtime) -> float:
    """Bytes a second that a rank sends when all send to all; without bound for a rank that is alone."""
    if runtime.world_size == 1:
        return float("inf")
    source = torch.ones(SENT // 4, device=runtime.device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: dist.all_to_all_single(target, source), runtime, repeats=20)
    return SENT * (runtime.world_size - 1) / runtime.world_size / seconds


def median_seconds(work: Callable[[], object], runtime: Runtime, repeats: int | None = None) -> float:
    """Of ``work``, warmed up. ``repeats``: how often, where every rank must do it alike."""
    times: list[float] = []
    work()
    ends = time.perf_counter() + SECONDS
    while len(times) < (repeats or 5) or (repeats is None and time.perf_counter() < ends):
        _finish(runtime)
        started = time.perf_counter()
        work()
        _finish(runtime)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _finish(runtime: Runtime) -> None:
    if runtime.device.type == "cuda":
        torch.cuda.synchronize(runtime.device)
