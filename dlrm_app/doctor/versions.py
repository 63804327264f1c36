"""Which of the paired packages are installed, by their metadata alone, and whether they fit together."""

import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distributions, requires

from dlrm_app.doctor.finding import Finding, State
from dlrm_app.machine import WHEELS_CUDA

# torch's minor version: the fbgemm and torchrec built against it; any other pair ends in an undefined symbol
FITTING = {"2.13": ("1.8.0", "1.8.0"), "2.12": ("1.7.0", "1.7.0"), "2.11": ("1.6.0", "1.6.1")}
TRIO = ("torch", "fbgemm", "torchrec")
OTHERS = ("hydra-core", "numpy", "numba", "pyarrow", "isal", "tensordict", "torchmetrics", "tqdm")
OLDEST, NEWEST = (3, 10), (3, 13)
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


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


def wanted_versions() -> dict[str, str]:
    """torch's minor version, fbgemm's and torchrec's exact ones, from dlrm-app's own metadata."""
    requirements = requirements_of_app()
    newest = next(iter(FITTING))
    defaults = {"torch": newest, "fbgemm": FITTING[newest][0], "torchrec": FITTING[newest][1]}
    pins = {name: requirements.get({"fbgemm": "fbgemm-gpu"}.get(name, name), "") for name in TRIO}
    matches = {name: re.search(r"==\s*([\d.]*\d)", text) for name, text in pins.items()}
    return {name: match.group(1) if match else defaults[name] for name, match in matches.items()}


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    text = ".".join(map(str, version))
    if OLDEST <= version <= NEWEST:
        return Finding("python", State.OK, text)
    return Finding("python", State.WRONG, f"{text}: no wheels for it", "make setup PYTHON=python3.12")


def check_versions(versions: Mapping[str, str], wanted: Mapping[str, str], has_driver: bool) -> list[Finding]:
    """A row for torch, fbgemm and torchrec each, and one on whether the three fit each other and the driver."""
    fix = install_command(wanted, "cuda" if has_driver else "cpu")
    builds = [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if name in versions]
    present = {
        "torch": versions.get("torch"),
        "fbgemm": " and ".join(f"{name} {versions[name]}" for name in builds) or None,
        "torchrec": versions.get("torchrec"),
    }
    rows = [
        Finding(name, State.WRONG, "not installed", fix)
        if present[name] is None
        else Finding(name, State.OK, str(present[name]))
        for name in TRIO
    ]
    fault = find_fault(versions, wanted, has_driver)
    if fault:
        return [*rows, Finding("the three together", State.WRONG, fault, fix)]
    if has_driver and "fbgemm-gpu-cpu" in builds:
        unused = Finding("the three together", State.NOTE, "fit, but leave the GPU unused", fix)
        return [*rows, unused]
    return [*rows, Finding("the three together", State.OK, "fit")]


def find_fault(versions: Mapping[str, str], wanted: Mapping[str, str], has_driver: bool) -> str | None:
    """Why the installed torch, fbgemm and torchrec cannot work together; None if they can."""
    builds = [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if name in versions]
    if len(builds) == 2:
        return "fbgemm-gpu and fbgemm-gpu-cpu are both installed: they overwrite each other's files"
    missing = [name for name in ("torch", "torchrec") if name not in versions] + ["fbgemm"] * (not builds)
    if missing:
        return f"{' and '.join(missing)} missing"
    if builds == ["fbgemm-gpu"] and not has_driver:
        return "fbgemm-gpu needs an NVIDIA driver, and there is none"
    if builds == ["fbgemm-gpu"] and versions["torch"].endswith("+cpu"):
        return "fbgemm-gpu needs a torch with CUDA, this one is for CPU"
    build = versions["torch"].partition("+")[2]
    if builds == ["fbgemm-gpu"] and build.startswith("cu") and not build.startswith(f"cu{WHEELS_CUDA[0]}"):
        return f"fbgemm-gpu is built for CUDA {WHEELS_CUDA[0]}, this torch for {build} (pip takes such a build where an index has it)"
    return _find_mismatch(minor(versions["torch"]), versions[builds[0]], versions["torchrec"], wanted)


def _find_mismatch(torch: str, fbgemm: str, torchrec: str, wanted: Mapping[str, str]) -> str | None:
    fitting = FITTING.get(torch)
    if fitting is None:
        return f"torch {torch} is not among those known to fit ({', '.join(FITTING)})"
    if (release(fbgemm), release(torchrec)) != fitting:
        return f"torch {torch} goes with fbgemm {fitting[0]} and torchrec {fitting[1]}, not {fbgemm} and {torchrec}"
    if torch != wanted["torch"]:
        return f"fit each other, but dlrm-app is made for torch {wanted['torch']}"
    return None


def minor(version: str) -> str:
    """2.13 of 2.13.0+cpu."""
    return ".".join(version.split(".")[:2])


def release(version: str) -> str:
    """1.8.0 of 1.8.0+cu130."""
    return version.split("+")[0]


def check_others(versions: Mapping[str, str], requirements: Mapping[str, str]) -> list[Finding]:
    """One row for the libraries that do not pair; one more for each that is missing."""
    present = [f"{name} {versions[name]}" for name in OTHERS if name in versions]
    missing = [name for name in OTHERS if name not in versions]
    rows = [Finding("other libraries", State.OK, ", ".join(present))] if present else []
    return rows + [
        Finding(name, State.WRONG, "not installed", f"{pip()} install '{requirements.get(name, name)}'")
        for name in missing
    ]


def install_command(wanted: Mapping[str, str], device: str) -> str:
    """What to type for the three packages to fit, on ``device`` cpu or cuda, whatever is there now."""
    remove = f"{pip()} uninstall -y torch torchrec fbgemm-gpu fbgemm-gpu-cpu"
    torch, fbgemm, torchrec = wanted["torch"], wanted["fbgemm"], wanted["torchrec"]
    if device == "cuda":
        # === : a build for CPU or another CUDA, which an index may have beside it, is not taken
        return f"{remove} && {pip()} install torch==={torch}.0 fbgemm-gpu=={fbgemm} torchrec=={torchrec}"
    return (
        f"{remove} && {pip()} install --extra-index-url {PYTORCH_CPU_INDEX} torch=={torch}.0+cpu "
        f"&& {pip()} install --no-deps fbgemm-gpu-cpu=={fbgemm} torchrec=={torchrec}"
    )


def pip() -> str:
    return f"{sys.executable} -m pip"
