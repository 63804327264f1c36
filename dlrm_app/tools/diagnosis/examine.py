"""dlrm-doctor: runs all checks in order. A check is skipped if an earlier failure makes it pointless."""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import distributions
from typing import Any

from dlrm_app.errors import ExitCode
from dlrm_app.machine import (
    GIB,
    HIDDEN,
    OLD_TRIOS,
    PYTORCH_CPU_INDEX,
    RUNNABLE,
    TRIOS,
    Driver,
    Trio,
    explain_missing,
    find_driver,
    has_kernels,
    needed_cuda,
)
from dlrm_app.result import Paragraph, Result
from dlrm_app.tools.diagnosis.probes import Answer, probe

PIP = f"{sys.executable} -m pip"
OLD_TRIO = (
    f"fit, but are older than torch {TRIOS[-1].name}: this project's CPU kernels are off, "
    "and trainer.pipeline=prefetch refuses GPUs (docs/versions.md)"
)


class State(Enum):
    OK = "ok"
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``fix``: a command or a sentence, if something is wrong or noteworthy."""

    check: str
    state: State
    result: str
    fix: str | None = None


def installed_versions() -> dict[str, str]:
    """The version of every distribution on the path, by its normalized name; the first one found counts."""
    versions: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return versions


def check_versions(versions: Mapping[str, str], has_driver: bool) -> list[Finding]:
    """A row each for torch, fbgemm and torchrec, and a row about their compatibility with each other and the driver."""
    fix = install_command("cuda" if has_driver else "cpu", nearest_trio(versions))
    builds = [f"{name} {versions[name]}" for name in _builds(versions)]
    present = {
        "torch": versions.get("torch"),
        "fbgemm": " and ".join(builds),
        "torchrec": versions.get("torchrec"),
    }
    rows = [
        Finding(name, State.OK, version) if version else Finding(name, State.WRONG, "not installed", fix)
        for name, version in present.items()
    ]
    together = Finding("the three together", State.OK, "fit")
    if fault := find_fault(versions, has_driver):
        together = Finding("the three together", State.WRONG, fault, fix)
    elif has_driver and "fbgemm-gpu-cpu" in versions:
        together = Finding("the three together", State.NOTE, "fit, but leave the GPU unused", fix)
    elif nearest_trio(versions) in OLD_TRIOS:
        together = Finding("the three together", State.NOTE, OLD_TRIO)
    return [*rows, together]


def find_fault(versions: Mapping[str, str], has_driver: bool) -> str | None:
    """The reason why the installed torch, fbgemm and torchrec cannot work together; None if they can."""
    builds = _builds(versions)
    if len(builds) == 2:
        return "fbgemm-gpu and fbgemm-gpu-cpu are both installed: they overwrite each other's files"
    missing = [name for name in ("torch", "torchrec") if name not in versions] + ["fbgemm"] * (not builds)
    if missing:
        return f"{' and '.join(missing)} missing"
    torch, _, build = versions["torch"].partition("+")
    if builds == ["fbgemm-gpu"] and not has_driver:
        return "fbgemm-gpu needs an NVIDIA driver, and there is none"
    cuda = needed_cuda()[0]
    if builds == ["fbgemm-gpu"] and build and not build.startswith(f"cu{cuda}"):
        return f"fbgemm-gpu is built for CUDA {cuda}, this torch for {build}"
    found = Trio(torch, *(versions[name].partition("+")[0] for name in (builds[0], "torchrec")))
    if any((found.name, *found[1:]) == (trio.name, *trio[1:]) for trio in RUNNABLE):
        return None
    return f"{'; or '.join(map(_listed, RUNNABLE))} fit, not {_listed(found)}"


def nearest_trio(versions: Mapping[str, str]) -> Trio:
    """The trio with the installed torch; the newest trio if there is none."""
    torch = versions.get("torch", "")
    return next((trio for trio in RUNNABLE if torch.startswith(f"{trio.name}.")), TRIOS[0])


def _builds(versions: Mapping[str, str]) -> list[str]:
    return [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if name in versions]


def _listed(trio: Trio) -> str:
    return f"torch {trio.name}, fbgemm {trio.fbgemm}, torchrec {trio.torchrec}"


def install_command(device: str, trio: Trio) -> str:
    """The command that installs ``trio`` for ``device`` (cpu or cuda), whatever is installed now.

    It uninstalls both builds of fbgemm first: they share one folder, and uninstalling one deletes the other's files.
    """
    remove = f"{PIP} uninstall -y torch torchrec fbgemm-gpu fbgemm-gpu-cpu"
    torch, fbgemm, torchrec = trio
    if device == "cuda":
        # === : never takes a build for CPU or another CUDA version from the same index
        return f"{remove} && {PIP} install torch==={torch} fbgemm-gpu=={fbgemm} torchrec=={torchrec}"
    return (
        f"{remove} && {PIP} install --extra-index-url {PYTORCH_CPU_INDEX} torch=={torch}+cpu "
        f"&& {PIP} install --no-deps fbgemm-gpu-cpu=={fbgemm} torchrec=={torchrec}"
    )


SHARED_MEMORY = GIB // 2
UPDATE_DRIVER = "update the NVIDIA driver (nvidia-smi shows it); or for CPU wheels: make setup DEVICE=cpu"
HIDE_GPUS = "use another GPU, or train on the CPU: CUDA_VISIBLE_DEVICES= dlrm-train …"
FIND_GPUS = "nvidia-smi -L (lists the GPUs; in a container: docker run --gpus all, in Slurm: --gpus-per-node)"
FIX_BACKEND = {
    "gloo": "GLOO_SOCKET_IFNAME=lo dlrm-doctor (names the network interface to use; `ip link` lists them)",
    "nccl": "NCCL_DEBUG=INFO dlrm-doctor (shows what NCCL meets; often /dev/shm is too small)",
}


@dataclass(frozen=True)
class Examination(Result):
    """The findings about the installation and the machine."""

    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.state is State.WRONG)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.FAILED if self.wrong else ExitCode.DONE

    def paragraphs(self) -> Iterable[Paragraph]:
        for finding in self.findings:
            yield f"{finding.check:20} {finding.state.value:6} {finding.result}"
        for fix in dict.fromkeys(finding.fix for finding in self.findings if finding.fix):
            checks = [finding.check for finding in self.findings if finding.fix == fix]
            yield f"\nfor {', '.join(checks)}, type:\n  {fix}"
        end = f"{len(self.wrong)} of {len(self.findings)} checks found something wrong"
        yield f"\n{end if self.wrong else 'all is well'}"


def diagnose(timeout: float) -> Examination:
    """Runs all checks. Every probe gets ``timeout`` seconds."""
    findings: Iterable[Finding] = examine(timeout)
    with suppress(ImportError):  # an installation that lacks tqdm is examined without a bar
        from dlrm_app.progress import work_bar

        findings = work_bar(findings, desc="checks", unit="check")
    return Examination(tuple(findings))


def examine(timeout: float) -> Iterator[Finding]:
    """Yields each finding as soon as it is known. Every probe gets ``timeout`` seconds."""
    versions, driver = installed_versions(), find_driver()
    is_for_gpus = "fbgemm-gpu" in versions
    has_driver = driver is not None and (driver.fault is None or is_for_gpus)
    yield judge_driver(driver, is_for_gpus)
    yield from check_versions(versions, has_driver)
    yield _judge_shared_memory()
    fix = install_command("cuda" if has_driver else "cpu", nearest_trio(versions))
    yield from _try_libraries(fix, driver if is_for_gpus else None, timeout)


def judge_driver(driver: Driver | None, is_for_gpus: bool) -> Finding:
    if driver is None or driver.fault is None:
        return Finding("NVIDIA driver", State.OK, str(driver or "none"))
    return Finding("NVIDIA driver", State.WRONG if is_for_gpus else State.NOTE, driver.fault, UPDATE_DRIVER)


def _judge_shared_memory() -> Finding:
    """Checks /dev/shm, which NCCL's ranks on one machine use; containers often have only 64 MiB."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    text = f"{free / GIB:.1f} GiB free in /dev/shm"
    if free >= SHARED_MEMORY:
        return Finding("shared memory", State.OK, text)
    return Finding("shared memory", State.NOTE, f"{text}, too little for NCCL: docker run --shm-size=1g")


def _try_libraries(fix: str, driver: Driver | None, timeout: float) -> Iterator[Finding]:
    """Tries the libraries. ``driver``: None if there is none, or if the wheels are for CPU."""
    torch = probe("load", "torch", timeout=timeout)
    yield _judge("torch loads", torch, fix)
    if torch.fault:
        for check in ("fbgemm loads", "torchrec loads", "collectives"):
            yield Finding(check, State.NOTE, "not tried, because torch does not load")
        return
    gpus = torch.facts.get("gpus", [])
    yield from map(describe_gpu, range(len(gpus)), gpus)
    if driver is not None and not gpus:
        yield judge_no_gpu(driver, torch)
    fbgemm = probe("load", "fbgemm_gpu", timeout=timeout)
    yield _judge("fbgemm loads", fbgemm, fix)
    if not fbgemm.fault:
        for device in ["cpu", *(f"cuda:{index}" for index in range(len(gpus)))]:
            yield _judge(f"fbgemm on {device}", probe("operators", device, timeout=timeout), fix)
    yield _judge("torchrec loads", probe("load", "torchrec", timeout=timeout), fix)
    yield _judge("gloo", probe("exchange", "gloo", "2", timeout=timeout), FIX_BACKEND["gloo"])
    if gpus:
        num_processes = str(min(2, len(gpus)))
        yield _judge("nccl", probe("exchange", "nccl", num_processes, timeout=timeout), FIX_BACKEND["nccl"])


def _judge(check: str, answer: Answer, fix: str) -> Finding:
    """Turns an answer into a finding. A finished probe may give a ``result`` and say if it ``is_right``."""
    if answer.fault is not None:
        hint = " (a wrong pair of versions)" if "undefined symbol" in answer.fault else ""
        return Finding(check, State.WRONG, answer.fault + hint, fix)
    result = answer.facts.get("result", "yes")
    is_right = answer.facts.get("is_right", True)
    return Finding(check, State.OK, result) if is_right else Finding(check, State.WRONG, result, fix)


def describe_gpu(index: int, gpu: Mapping[str, Any]) -> Finding:
    major, minor = gpu["capability"]
    if not has_kernels((major, minor)):
        text = f"{gpu['name']}, {explain_missing((major, minor))}"
        return Finding(f"cuda:{index}", State.NOTE, text, HIDE_GPUS)
    memory = f"{gpu['free'] / GIB:.1f} GiB free of {gpu['total'] / GIB:.1f}"
    return Finding(f"cuda:{index}", State.OK, f"{gpu['name']}, compute capability {major}.{minor}, {memory}")


def judge_no_gpu(driver: Driver, torch: Answer) -> Finding:
    if torch.facts.get("cuda") is None:
        return Finding("GPUs", State.OK, "not tried: torch is a build for CPU")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in HIDDEN:
        return Finding("GPUs", State.NOTE, f"hidden by CUDA_VISIBLE_DEVICES={hidden}")
    reason = torch.facts.get("why_no_gpu") or "it gives no reason"
    fix = UPDATE_DRIVER if driver.fault else FIND_GPUS
    return Finding("GPUs", State.WRONG, f"there is a driver, but torch sees no GPU: {reason}", fix)
