"""Makes a virtual environment in which torch, fbgemm and torchrec fit together, on this machine.

    python3 scripts/setup.py                  # what `make setup` runs
    python3 scripts/setup.py --device=cpu     # CPU wheels in spite of an NVIDIA driver

With an NVIDIA driver a plain `pip install .` is right. Without one it is not: torchrec's metadata asks for
`fbgemm-gpu`, which cannot be imported where there is no driver, so the CPU build of fbgemm takes its place and
torchrec comes without its dependencies (the project names them all). Standard library only; versions are read
from the project's own metadata, so they stand in pyproject.toml alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# not installed yet: found beside this script
from dlrm_app.machine import PYTHONS, PYTORCH_CPU_INDEX, WHEELS_CUDA, Driver, find_driver  # noqa: E402

OLDEST, NEWEST = PYTHONS
STAMP = "dlrm-app-setup.json"


class SetupError(Exception):
    """Something that the user can mend; the message says how."""


@dataclass(frozen=True)
class Machine:
    """What the choice depends on. ``driver`` None: there is no NVIDIA driver."""

    python: tuple[int, int]
    system: str
    processor: str
    driver: Driver | None


@dataclass(frozen=True)
class Choice:
    """``device`` is cpu or cuda."""

    device: str
    reason: str


@dataclass(frozen=True)
class CpuPlan:
    """What pip installs for CPU: ``torch`` first, then ``resolved`` with dependencies and ``bare`` without."""

    torch: str
    resolved: list[str]
    bare: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where the environment goes")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--extras", default="dev", help="extras of pyproject.toml, separated by commas")
    options = parser.parse_args()
    try:
        set_up(options.venv.resolve(), options.device, [e for e in options.extras.split(",") if e])
    except SetupError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: run the same command again, it goes on from what is installed")


def set_up(venv: Path, device: str, extras: list[str]) -> None:
    """Brings ``venv`` to the state that pyproject.toml describes; does nothing if it is there already.

    Extras that an earlier call installed stay, so that two commands with other extras do not undo each other's work.
    """
    machine = look_at_machine()
    choice = choose(machine, device)
    stamp = venv / STAMP
    installed = json.loads(stamp.read_text()) if stamp.is_file() else {}
    extras = sorted({*extras, *installed.get("extras", [])})
    state = describe_state(choice, extras, machine)
    if installed == state:
        print(f"{venv} is up to date ({choice.device}); to install anew: rm -r {venv}")
        return
    print(f"device: {choice.device}, because {choice.reason}", flush=True)
    python = make_venv(venv, machine.python)
    stamp.unlink(missing_ok=True)
    remove_misfits(python, choice.device)
    if choice.device == "cuda":
        install_for_cuda(python, extras)
    else:
        install_for_cpu(python, extras)
    stamp.write_text(json.dumps(state))
    print(f"installed in {venv}; see what it holds with: {venv}/bin/dlrm-doctor")


def look_at_machine() -> Machine:
    return Machine(sys.version_info[:2], sys.platform, platform.machine(), find_driver())


def choose(machine: Machine, device: str = "auto") -> Choice:
    """CPU or CUDA wheels, and why. Raises SetupError where there are none."""
    if not OLDEST <= machine.python <= NEWEST:
        raise SetupError(
            f"Python {dotted(machine.python)} has no fitting torch, fbgemm and torchrec; {dotted(OLDEST)} to "
            f"{dotted(NEWEST)} have. Name one that is installed: make setup PYTHON={find_python()}"
        )
    if machine.system != "linux":
        raise SetupError(
            f"fbgemm has no wheels for {machine.system}, only for Linux: use a Linux machine or container"
        )
    if device == "cuda" and machine.processor != "x86_64":
        raise SetupError(
            f"fbgemm-gpu has CUDA wheels for x86_64 alone, this is {machine.processor}: use DEVICE=cpu"
        )
    if device != "auto":
        return Choice(device, f"DEVICE={device} asks for it")
    if machine.driver is None:
        return Choice("cpu", "no NVIDIA driver was found (DEVICE=cuda installs CUDA wheels all the same)")
    if machine.processor != "x86_64":
        return Choice("cpu", f"fbgemm-gpu has no CUDA wheels for {machine.processor}")
    if machine.driver.fault:
        raise SetupError(
            f"{machine.driver.fault}: update the driver, or install CPU wheels, which leave the GPU unused, with "
            "make setup DEVICE=cpu"
        )
    return Choice("cuda", f"{machine.driver} (DEVICE=cpu installs CPU wheels all the same)")


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def find_python() -> str:
    """A fitting Python on the path, the newest first; the name of one to install if there is none."""
    names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    return next((name for name in names if shutil.which(name)), "python3.12 (after installing it)")


def describe_state(choice: Choice, extras: list[str], machine: Machine) -> dict[str, object]:
    """Equal to that of an earlier run exactly if there is nothing to do."""
    sources = (ROOT / "pyproject.toml").read_bytes() + Path(__file__).read_bytes()
    return {
        "sources": hashlib.sha256(sources).hexdigest(),
        "project": str(ROOT),
        "device": choice.device,
        "extras": extras,
        "python": list(machine.python),
    }


def make_venv(venv: Path, version: tuple[int, int]) -> Path:
    """The Python in ``venv``, which is made if it is not there."""
    python = venv / "bin" / "python"
    if not python.is_file():
        print(f"making {venv} with Python {dotted(version)}", flush=True)
        run([sys.executable, "-m", "venv", str(venv)])
    found = output([str(python), "-c", "import sys; print(*sys.version_info[:2])"]).split()
    if found != [str(part) for part in version]:
        raise SetupError(
            f"{venv} holds Python {'.'.join(found)}, not {dotted(version)}: "
            f"rm -r {venv}, or name that Python with PYTHON=python{'.'.join(found)}"
        )
    return python


def remove_misfits(python: Path, device: str) -> None:
    """Uninstalls what would stand in the way."""
    names = find_misfits(installed_versions(python), device)
    if names:
        print(f"removing {', '.join(names)}, which do not fit {device}", flush=True)
        run([str(python), "-m", "pip", "uninstall", "-q", "-y", *names])


def find_misfits(versions: dict[str, str], device: str) -> list[str]:
    """Distributions to uninstall. Both builds of fbgemm share one folder, so where one goes, both go."""
    misfits = []
    if device == "cuda" and is_for_other_cuda(versions.get("torch", "")):
        misfits.append("torch")  # it would satisfy the version asked for
    unwanted = "fbgemm-gpu" if device == "cpu" else "fbgemm-gpu-cpu"
    if unwanted in versions:
        misfits += [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if name in versions]
    return misfits


def is_for_other_cuda(torch: str) -> bool:
    """Whether a version of torch, as 2.13.0+cpu or 2.13.0+cu126, is of a build for CPU or another CUDA."""
    _, _, build = torch.partition("+")
    return build == "cpu" or (build.startswith("cu") and not build.startswith(f"cu{WHEELS_CUDA[0]}"))


def installed_versions(python: Path) -> dict[str, str]:
    listing = json.loads(
        output([str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"])
    )
    return {re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"] for package in listing}


def install_for_cuda(python: Path, extras: list[str]) -> None:
    """A source that has 2.13.0+cpu or 2.13.0+cu126 beside 2.13.0 wins by that: pip holds the longer for the newer."""
    print("installing the CUDA wheels (several GB)", flush=True)
    pip_install(python, ["-e", f"{ROOT}[{','.join(extras)}]"])
    torch = installed_versions(python).get("torch", "")
    if not is_for_other_cuda(torch):
        return
    plain = torch.partition("+")[0]
    print(f"pip took torch {torch}, which fbgemm-gpu does not fit: taking {plain} itself", flush=True)
    if not pip_install(python, [f"torch==={plain}"], may_lack=f"torch==={plain}"):
        raise SetupError(
            f"pip's sources have torch {torch}, and fbgemm-gpu needs the build for CUDA {WHEELS_CUDA[0]}, torch {plain}: "
            "leave out the extra index (PIP_EXTRA_INDEX_URL, pip config list), or name a folder with that wheel, "
            "PIP_FIND_LINKS=FOLDER"
        )


def install_for_cpu(python: Path, extras: list[str]) -> None:
    pip_install(python, ["--no-deps", "-e", str(ROOT)])
    plan = plan_for_cpu(read_requirements(python), extras)
    install_torch_for_cpu(python, plan.torch)
    print("installing what goes with it", flush=True)
    pip_install(python, plan.resolved)
    pip_install(python, ["--no-deps", *plan.bare])
    print("`pip check` will say that torchrec misses fbgemm-gpu: fbgemm-gpu-cpu is in its place, all is well")


def install_torch_for_cpu(python: Path, torch: str) -> None:
    """The CPU build from the nearest source that has it; failing that, the build that runs on both."""
    cpu_build = torch.replace(".*", ".0") + "+cpu"
    print(f"installing {cpu_build}", flush=True)
    if pip_install(python, ["--no-deps", cpu_build], may_lack=cpu_build):
        return
    print(
        f"pip's configured sources have none for this Python: trying PyTorch's, {PYTORCH_CPU_INDEX}",
        flush=True,
    )
    index = ["--extra-index-url", PYTORCH_CPU_INDEX, "--retries", "1"]
    if pip_install(python, ["--no-deps", *index, cpu_build], may_lack=cpu_build):
        return
    print(
        f"that is out of reach: taking {torch} with CUDA, which runs on CPU too but is several GB larger",
        flush=True,
    )
    if not pip_install(python, ["--no-deps", torch], may_lack=torch):
        raise SetupError(
            f"neither pip's configured sources nor {PYTORCH_CPU_INDEX} have {cpu_build} or {torch}. "
            "Put a wheel in a folder and name it: PIP_FIND_LINKS=FOLDER make setup"
        )


def read_requirements(python: Path) -> list[str]:
    """What the project's metadata asks for, extras included."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('dlrm-app')))"
    return json.loads(output([str(python), "-c", code]))


def plan_for_cpu(requirements: list[str], extras: list[str]) -> CpuPlan:
    """The project's ``requirements``, as its metadata has them, with fbgemm's CPU build in the place of CUDA's."""
    torch, resolved, bare = "torch", [], []
    for requirement in requirements:
        text, _, marker = (part.strip() for part in requirement.partition(";"))
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
        if extra and extra.group(1) not in extras:
            continue
        name = re.match(r"[\w.-]+", text).group().lower()
        if name == "torchrec":
            bare.append(text)
        elif name == "fbgemm-gpu":
            resolved.append(text.replace("fbgemm-gpu", "fbgemm-gpu-cpu"))
        else:
            torch = text if name == "torch" else torch
            resolved.append(text)
    return CpuPlan(torch, resolved, bare)


def pip_install(python: Path, arguments: list[str], may_lack: str | None = None) -> bool:
    """Runs pip; gives False if ``may_lack`` is what its sources lack. Raises SetupError for any other failure."""
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return True
    if may_lack is not None and f"No matching distribution found for {may_lack}" in done.stderr:
        return False
    raise SetupError(f"pip failed. {last_lines(done.stderr)}\nThe command was: {' '.join(command)}")


def last_lines(text: str) -> str:
    return "\n".join(["It said:", *text.strip().splitlines()[-12:]])


def run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise SetupError(f"this command failed: {' '.join(command)}")


def output(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"this command failed: {' '.join(command)}")
    return done.stdout


if __name__ == "__main__":
    main()
