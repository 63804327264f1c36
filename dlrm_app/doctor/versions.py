"""Checks which of the paired packages are installed, by their metadata alone, and whether they fit together."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import distributions

from dlrm_app.machine import PYTORCH_CPU_INDEX, TRIOS, Trio, needed_cuda

PIP = f"{sys.executable} -m pip"


class State(Enum):
    OK = "ok"
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``fix``, a command to type or a sentence, where something is wrong or noteworthy."""

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
    """A row for torch, fbgemm and torchrec each, and one on whether the three fit each other and the driver."""
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
    return [*rows, together]


def find_fault(versions: Mapping[str, str], has_driver: bool) -> str | None:
    """Why the installed torch, fbgemm and torchrec cannot work together; None if they can."""
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
    if any((found.name, *found[1:]) == (trio.name, *trio[1:]) for trio in TRIOS):
        return None
    return f"{'; or '.join(map(_listed, TRIOS))} fit, not {_listed(found)}"


def nearest_trio(versions: Mapping[str, str]) -> Trio:
    """The trio of the installed torch; the newest if it has none."""
    torch = versions.get("torch", "")
    return next((trio for trio in TRIOS if torch.startswith(f"{trio.name}.")), TRIOS[0])


def _builds(versions: Mapping[str, str]) -> list[str]:
    return [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if name in versions]


def _listed(trio: Trio) -> str:
    return f"torch {trio.name}, fbgemm {trio.fbgemm}, torchrec {trio.torchrec}"


def install_command(device: str, trio: Trio) -> str:
    """What to type for the three packages to be ``trio``, on ``device`` cpu or cuda, whatever is there now.

    Both builds of fbgemm go first: they share one folder, and uninstalling one takes the other's files.
    """
    remove = f"{PIP} uninstall -y torch torchrec fbgemm-gpu fbgemm-gpu-cpu"
    torch, fbgemm, torchrec = trio
    if device == "cuda":
        # === : a build for CPU or another CUDA, which an index may have beside it, is not taken
        return f"{remove} && {PIP} install torch==={torch} fbgemm-gpu=={fbgemm} torchrec=={torchrec}"
    return (
        f"{remove} && {PIP} install --extra-index-url {PYTORCH_CPU_INDEX} torch=={torch}+cpu "
        f"&& {PIP} install --no-deps fbgemm-gpu-cpu=={fbgemm} torchrec=={torchrec}"
    )
