"""Checks which of the paired packages are installed, by their metadata alone, and whether they fit together."""

import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distributions, requires

from dlrm_app.doctor.report import Finding, State
from dlrm_app.machine import PYTHONS, PYTORCH_CPU_INDEX, WHEELS_CUDA

FITTING = {"torch": "2.13", "fbgemm": "1.8.0", "torchrec": "1.8.0"}
"""Built for each other, as pyproject.toml asks for them; any other three end in an undefined symbol."""
OTHERS = ("hydra-core", "msgspec", "numpy", "numba", "pyarrow", "isal", "tensordict", "torchmetrics", "tqdm")
PIP = f"{sys.executable} -m pip"


def installed_versions() -> dict[str, str]:
    """The version of every distribution on the path, by its normalized name; the first one found counts."""
    versions: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return versions


def requirements_of_app() -> dict[str, str]:
    """What dlrm-app's own metadata asks for, as pip takes it, by name; empty where it is not installed."""
    try:
        requirements = requires("dlrm-app") or []
    except PackageNotFoundError:
        return {}
    plain = [text for text in requirements if ";" not in text]  # extras have a marker
    return {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower(): text for text in plain}


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    text = ".".join(map(str, version))
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return Finding("python", State.OK, text)
    return Finding("python", State.WRONG, f"{text}: no wheels for it", "make setup PYTHON=python3.12")


def check_versions(versions: Mapping[str, str], has_driver: bool) -> list[Finding]:
    """A row for torch, fbgemm and torchrec each, and one on whether the three fit each other and the driver."""
    fix = install_command("cuda" if has_driver else "cpu")
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
    fault = find_fault(versions, has_driver)
    if fault:
        return [*rows, Finding("the three together", State.WRONG, fault, fix)]
    if has_driver and "fbgemm-gpu-cpu" in versions:
        return [*rows, Finding("the three together", State.NOTE, "fit, but leave the GPU unused", fix)]
    return [*rows, Finding("the three together", State.OK, "fit")]


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
    if builds == ["fbgemm-gpu"] and build and not build.startswith(f"cu{WHEELS_CUDA[0]}"):
        return f"fbgemm-gpu is built for CUDA {WHEELS_CUDA[0]}, this torch for {build}"
    found = {
        "torch": ".".join(torch.split(".")[:2]),
        "fbgemm": versions[builds[0]].partition("+")[0],
        "torchrec": versions["torchrec"].partition("+")[0],
    }
    return None if found == FITTING else f"{_listed(FITTING)} fit, not {_listed(found)}"


def _builds(versions: Mapping[str, str]) -> list[str]:
    return [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if name in versions]


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def check_others(versions: Mapping[str, str], requirements: Mapping[str, str]) -> list[Finding]:
    """One row for the libraries that do not pair; one more for each that is missing."""
    present = [f"{name} {versions[name]}" for name in OTHERS if name in versions]
    missing = [name for name in OTHERS if name not in versions]
    rows = [Finding("other libraries", State.OK, ", ".join(present))] if present else []
    return rows + [
        Finding(name, State.WRONG, "not installed", f"{PIP} install '{requirements.get(name, name)}'")
        for name in missing
    ]


def install_command(device: str) -> str:
    """What to type for the three packages to fit, on ``device`` cpu or cuda, whatever is there now."""
    remove = f"{PIP} uninstall -y torch torchrec fbgemm-gpu fbgemm-gpu-cpu"
    torch, fbgemm, torchrec = FITTING["torch"], FITTING["fbgemm"], FITTING["torchrec"]
    if device == "cuda":
        # === : a build for CPU or another CUDA, which an index may have beside it, is not taken
        return f"{remove} && {PIP} install torch==={torch}.0 fbgemm-gpu=={fbgemm} torchrec=={torchrec}"
    return (
        f"{remove} && {PIP} install --extra-index-url {PYTORCH_CPU_INDEX} torch=={torch}.0+cpu "
        f"&& {PIP} install --no-deps fbgemm-gpu-cpu=={fbgemm} torchrec=={torchrec}"
    )
