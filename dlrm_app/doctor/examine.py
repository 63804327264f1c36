"""All checks in order; a later one is not tried where an earlier one rules it out."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlrm_app.doctor.probes import Answer, probe
from dlrm_app.doctor.report import Finding, State
from dlrm_app.doctor.versions import (
    check_others,
    check_python,
    check_versions,
    install_command,
    installed_versions,
    nearest_trio,
    requirements_of_app,
)
from dlrm_app.machine import HIDDEN, Driver, explain_missing, find_driver, has_kernels, memory_limits

GIB = 2**30
SHARED_MEMORY = GIB // 2
UPDATE_DRIVER = "update the NVIDIA driver (nvidia-smi shows it); or for CPU wheels: make setup DEVICE=cpu"
HIDE_GPUS = "use another GPU, or train on the CPU: CUDA_VISIBLE_DEVICES= dlrm-train …"
FIND_GPUS = "nvidia-smi -L (lists the GPUs; in a container: docker run --gpus all, in Slurm: --gpus-per-node)"
FIX_BACKEND = {
    "gloo": "GLOO_SOCKET_IFNAME=lo dlrm-doctor (names the network interface to use; `ip link` lists them)",
    "nccl": "NCCL_DEBUG=INFO dlrm-doctor (shows what NCCL meets; often /dev/shm is too small)",
}


def examine(timeout: float) -> Iterator[Finding]:
    """Gives each finding as soon as there is one; every probe gets ``timeout`` seconds."""
    versions, driver = installed_versions(), find_driver()
    yield check_python()
    is_for_gpus = "fbgemm-gpu" in versions
    has_driver = driver is not None and (driver.fault is None or is_for_gpus)
    yield _judge_driver(driver, is_for_gpus)
    yield from check_versions(versions, has_driver)
    yield from check_others(versions, requirements_of_app())
    yield Finding("memory", State.OK, describe_memory())
    yield Finding("CPU cores", State.OK, str(len(os.sched_getaffinity(0))))
    yield _judge_shared_memory()
    fix = install_command("cuda" if has_driver else "cpu", nearest_trio(versions))
    yield from _try_libraries(fix, driver if is_for_gpus else None, timeout)


def _judge_driver(driver: Driver | None, is_for_gpus: bool) -> Finding:
    if driver is None or driver.fault is None:
        return Finding("NVIDIA driver", State.OK, str(driver or "none"))
    return Finding("NVIDIA driver", State.WRONG if is_for_gpus else State.NOTE, driver.fault, UPDATE_DRIVER)


def describe_memory() -> str:
    """Free and total main memory, and a container's limit where that is lower."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    text = f"{kib['MemAvailable'] * 1024 / GIB:.1f} GiB free of {kib['MemTotal'] * 1024 / GIB:.1f}"
    if limits := memory_limits(Path("/")):
        text += f", limited to {min(limits) / GIB:.1f} GiB by the container"
    return text


def _judge_shared_memory() -> Finding:
    """NCCL's ranks of one machine meet there; containers often have 64 MiB."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    text = f"{free / GIB:.1f} GiB free in /dev/shm"
    if free >= SHARED_MEMORY:
        return Finding("shared memory", State.OK, text)
    return Finding("shared memory", State.NOTE, f"{text}, too little for NCCL: docker run --shm-size=1g")


def _try_libraries(fix: str, driver: Driver | None, timeout: float) -> Iterator[Finding]:
    """``driver``: None where there is none, or the wheels are for CPU."""
    torch = probe("load", "torch", timeout=timeout)
    yield _judge_loading("torch loads", torch, fix)
    if torch.fault:
        for check in ("fbgemm loads", "torchrec loads", "collectives"):
            yield Finding(check, State.NOTE, "not tried, for torch does not load")
        return
    gpus = torch.facts.get("gpus", [])
    yield from map(_describe_gpu, range(len(gpus)), gpus)
    if driver is not None and not gpus:
        yield _judge_no_gpu(driver, torch)
    fbgemm = probe("load", "fbgemm_gpu", timeout=timeout)
    yield _judge_loading("fbgemm loads", fbgemm, fix)
    if not fbgemm.fault:
        for device in ["cpu", *(f"cuda:{index}" for index in range(len(gpus)))]:
            yield _judge_operators(device, probe("operators", device, timeout=timeout), fix)
    yield _judge_loading("torchrec loads", probe("load", "torchrec", timeout=timeout), fix)
    yield _judge_exchange("gloo", probe("exchange", "gloo", "2", timeout=timeout))
    if gpus:
        num_processes = str(min(2, len(gpus)))
        yield _judge_exchange("nccl", probe("exchange", "nccl", num_processes, timeout=timeout))


def _judge_loading(check: str, answer: Answer, fix: str) -> Finding:
    if answer.fault is None:
        return Finding(check, State.OK, "yes")
    hint = " (a wrong pair of versions)" if "undefined symbol" in answer.fault else ""
    return Finding(check, State.WRONG, answer.fault + hint, fix)


def _describe_gpu(index: int, gpu: Mapping[str, Any]) -> Finding:
    major, minor = gpu["capability"]
    if not has_kernels((major, minor)):
        text = f"{gpu['name']}, {explain_missing((major, minor))}"
        return Finding(f"cuda:{index}", State.NOTE, text, HIDE_GPUS)
    memory = f"{gpu['free'] / GIB:.1f} GiB free of {gpu['total'] / GIB:.1f}"
    return Finding(f"cuda:{index}", State.OK, f"{gpu['name']}, compute capability {major}.{minor}, {memory}")


def _judge_no_gpu(driver: Driver, torch: Answer) -> Finding:
    if torch.facts.get("cuda") is None:
        return Finding("GPUs", State.OK, "not tried: torch is a build for CPU")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in HIDDEN:
        return Finding("GPUs", State.NOTE, f"hidden by CUDA_VISIBLE_DEVICES={hidden}")
    reason = torch.facts.get("why_no_gpu") or "it does not say why"
    fix = UPDATE_DRIVER if driver.fault else FIND_GPUS
    return Finding("GPUs", State.WRONG, f"there is a driver, but torch sees no GPU: {reason}", fix)


def _judge_operators(device: str, answer: Answer, fix: str) -> Finding:
    check = f"fbgemm on {device}"
    if answer.fault is not None:
        return Finding(check, State.WRONG, answer.fault, fix)
    text = f"a step of a table differs from nn.EmbeddingBag by {answer.facts['difference']:.0e}"
    if answer.facts["is_right"]:
        return Finding(check, State.OK, text)
    return Finding(check, State.WRONG, text, fix)


def _judge_exchange(backend: str, answer: Answer) -> Finding:
    if answer.fault is not None:
        return Finding(backend, State.WRONG, answer.fault, FIX_BACKEND[backend])
    return Finding(backend, State.OK, f"all_reduce and all_to_all, {answer.facts['processes']} process(es)")
