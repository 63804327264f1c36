"""What this rank's machine can do, measured: matrix products by precision, memory, exchange with the other ranks."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.kernels.products import is_for_onednn, multiply
from dlrm_app.sharding.estimate.machine import Machine

PRODUCT = {"cpu": (2048, 512), "cuda": (8192, 4096)}
"""Rows and width of a product of [rows, width] and [width, width], as an MLP's layers are; a GPU's fills all of it."""
COPIED = {"cpu": 64 << 20, "cuda": 512 << 20}
"""Bytes copied from place to place: more than the device's caches hold."""
SENT = 4 << 20
"""Bytes sent from each rank to all."""
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
    rows, width = PRODUCT[runtime.device_type]
    factors = [torch.randn(each, width, device=runtime.device).to(kind) for each in (rows, width)]
    product = multiply if is_for_onednn(factors[0]) else torch.mm
    seconds = median_seconds(lambda: product(*factors), runtime)
    return 2.0 * rows * width * width / seconds


def memory_rate(runtime: Runtime) -> float:
    """Bytes read and written a second."""
    num_bytes = COPIED[runtime.device_type]
    source = torch.ones(num_bytes // 4, device=runtime.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_seconds(lambda: target.copy_(source), runtime)


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
