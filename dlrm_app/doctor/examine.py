"""All checks in order; a later one is not tried where an earlier one rules it out."""

import os
from collections.abc import Iterator
from pathlib import Path

from dlrm_app.distributed.cgroup import memory_limits
from dlrm_app.doctor.driver import find_driver
from dlrm_app.doctor.finding import Finding, State
from dlrm_app.doctor.probe import Answer, probe
from dlrm_app.doctor.versions import (
    check_others,
    check_python,
    check_versions,
    install_command,
    installed_versions,
    requirements_of_app,
    wanted_versions,
)

GIB = 2**30


def examine(timeout: float) -> Iterator[Finding]:
    """Gives each finding as soon as there is one; every probe gets ``timeout`` seconds."""
    versions, wanted, driver = installed_versions(), wanted_versions(), find_driver()
    yield check_python()
    yield Finding("NVIDIA driver", State.OK, driver or "none")
    yield from check_versions(versions, wanted, driver is not None)
    yield from check_others(versions, requirements_of_app())
    yield Finding("memory", State.OK, describe_memory())
    yield Finding("CPU cores", State.OK, str(len(os.sched_getaffinity(0))))
    yield from _try_libraries(install_command(wanted, "cuda" if driver else "cpu"), timeout)


def _try_libraries(fix: str, timeout: float) -> Iterator[Finding]:
    torch = probe("load", "torch", timeout=timeout)
    yield _judge_loading("torch loads", torch, fix)
    if torch.fault:
        for check in ("fbgemm loads", "torchrec loads", "collectives"):
            yield Finding(check, State.NOTE, "not tried, for torch does not load")
        return
    gpus = torch.facts.get("gpus", [])
    for index, gpu in enumerate(gpus):
        memory = f"{gpu['free'] / GIB:.1f} GiB free of {gpu['total'] / GIB:.1f}"
        yield Finding(f"cuda:{index}", State.OK, f"{gpu['name']}, {memory}")
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
    else:
        yield Finding("nccl", State.OK, "not tried: no GPU")


def _judge_loading(check: str, answer: Answer, fix: str) -> Finding:
    if answer.fault is None:
        return Finding(check, State.OK, "yes")
    hint = " (a wrong pair of versions)" if "undefined symbol" in answer.fault else ""
    return Finding(check, State.WRONG, answer.fault + hint, fix)


def _judge_operators(device: str, answer: Answer, fix: str) -> Finding:
    check = f"fbgemm on {device}"
    if answer.fault is not None:
        return Finding(check, State.WRONG, answer.fault, fix)
    text = f"a step of two tables differs from nn.EmbeddingBag by {answer.facts['difference']:.0e}"
    if answer.facts["is_right"]:
        return Finding(check, State.OK, text)
    return Finding(check, State.WRONG, text, fix)


def _judge_exchange(backend: str, answer: Answer) -> Finding:
    if answer.fault is None:
        text = f"all_reduce and all_to_all, {answer.facts['processes']} process(es)"
        return Finding(backend, State.OK, text)
    fix = {
        "gloo": "GLOO_SOCKET_IFNAME=lo dlrm-doctor (names the network interface to use; `ip link` lists them)",
        "nccl": "NCCL_DEBUG=INFO dlrm-doctor (shows what NCCL meets; often /dev/shm is too small)",
    }[backend]
    return Finding(backend, State.WRONG, answer.fault, fix)


def describe_memory() -> str:
    """Free and total main memory, and a container's limit where that is lower."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    text = f"{kib['MemAvailable'] * 1024 / GIB:.1f} GiB free of {kib['MemTotal'] * 1024 / GIB:.1f}"
    if limits := memory_limits(Path("/")):
        text += f", limited to {min(limits) / GIB:.1f} GiB by the container"
    return text
