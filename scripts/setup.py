"""Makes a virtual environment in which torch, fbgemm and torchrec fit together, on this machine.

    python3 scripts/setup.py                  # what `make setup` runs
    python3 scripts/setup.py --device=cpu     # CPU wheels in spite of an NVIDIA driver
    python3 scripts/setup.py --trio=2.13      # this torch, with the fbgemm and torchrec that are built for it

With an NVIDIA driver a plain `pip install .` is right. Without one it is not: torchrec's metadata asks for
`fbgemm-gpu`, which cannot be imported where there is no driver, so the CPU build of fbgemm takes its place and
torchrec comes without its dependencies (the project names them all). Standard library only; the versions of the
three stand in dlrm_app/machine.py, all others in pyproject.toml.
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
from dlrm_app.machine import (  # noqa: E402
    PYTHONS,
    PYTORCH_CPU_INDEX,
    RUNNABLE,
    TRIOS,
    WHEELS_CUDA,
    Driver,
    Trio,
    find_driver,
)

OLDEST, NEWEST = PYTHONS
STAMP = "dlrm-app-setup.json"
PYTORCH_CU126_INDEX = "https://download.pytorch.org/whl/cu126"
CU126_TRIO = next(trio for trio in TRIOS if trio.name == "2.13")
"""The newest whose builds for CUDA 12.6 upstream names (FBGEMM's pull request 5976); there are none for 12.8."""


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
    """``device`` is cpu, cuda or cu126."""

    device: str
    reason: str


@dataclass(frozen=True)
class CpuPlan:
    """What pip installs for CPU once torch is there: ``resolved`` with dependencies and ``bare`` without."""

    resolved: list[str]
    bare: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where the environment goes")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "cu126"], default="auto")
    parser.add_argument("--trio", choices=["auto", *(trio.name for trio in RUNNABLE)], default="auto")
    parser.add_argument("--extras", default="dev", help="extras of pyproject.toml, separated by commas")
    options = parser.parse_args()
    try:
        extras = [extra for extra in options.extras.split(",") if extra]
        set_up(options.venv.resolve(), options.device, extras, options.trio)
    except SetupError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: run the same command again, it goes on from what is installed")


def set_up(venv: Path, device: str, extras: list[str], trio: str = "auto") -> None:
    """Brings ``venv`` to the state that pyproject.toml describes; does nothing if it is there already.

    Extras that an earlier call installed stay, and so does its trio where none is asked for, so that two commands with
    other options do not undo each other's work.
    """
    machine = look_at_machine()
    choice = choose(machine, device)
    stamp = venv / STAMP
    installed = json.loads(stamp.read_text()) if stamp.is_file() else {}
    extras = sorted({*extras, *installed.get("extras", [])})
    trios = find_trios(choice.device, trio, installed)
    state = describe_state(choice, extras, machine)
    if len(trios) == 1 and installed == {**state, "trio": trios[0].name}:
        print(
            f"{venv} is up to date ({choice.device}, torch {trios[0].torch}); to install anew: rm -r {venv}"
        )
        return
    print(f"device: {choice.device}, because {choice.reason}", flush=True)
    python = make_venv(venv, machine.python)
    stamp.unlink(missing_ok=True)
    remove_misfits(python, choice.device)
    if choice.device == "cpu":
        taken = install_for_cpu(python, extras, trios)
    elif choice.device == "cu126":
        taken = install_for_cu126(python, extras, trios[0])
    else:
        taken = install_for_cuda(python, extras, trios[0])
    stamp.write_text(json.dumps({**state, "trio": taken.name}))
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
    if device in ("cuda", "cu126") and machine.processor != "x86_64":
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
            f"{machine.driver.fault}. Update the driver. Where it must stay: "
            "make setup DEVICE=cu126 installs wheels for "
            "CUDA 12.6 (driver 525 or newer; A100, A10, L4, L40, H100, H200); NVIDIA's package cuda-compat-13-0 makes "
            "drivers of datacentre GPUs run CUDA 13 once its folder is in LD_LIBRARY_PATH; "
            "make setup DEVICE=cpu leaves "
            "the GPU unused (docs/versions.md)"
        )
    return Choice("cuda", f"{machine.driver} (DEVICE=cpu installs CPU wheels all the same)")


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def find_python() -> str:
    """A fitting Python on the path, the newest first; the name of one to install if there is none."""
    names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    return next((name for name in names if shutil.which(name)), "python3.12 (after installing it)")


def find_trios(device: str, wanted: str, installed: dict[str, object]) -> list[Trio]:
    """The trios to try, the best first: the one ``wanted`` or, for auto, the one
    that is ``installed``, else all that fit.
    """
    if device == "cu126" and wanted in ("auto", CU126_TRIO.name):
        return [CU126_TRIO]
    if device == "cu126":
        raise SetupError(
            f"for CUDA 12.6 there is only TRIO={CU126_TRIO.name}: leave TRIO={wanted} or DEVICE=cu126 out"
        )
    name = installed.get("trio") if wanted == "auto" else wanted
    return [trio for trio in RUNNABLE if trio.name == name] or list(TRIOS)


def describe_state(choice: Choice, extras: list[str], machine: Machine) -> dict[str, object]:
    """With the name of the trio, equal to that of an earlier run exactly if there is nothing to do."""
    files = (ROOT / "pyproject.toml", Path(__file__))
    sources = b"".join(file.read_bytes() for file in files) + repr(RUNNABLE).encode()
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
    if unwanted in versions or (device == "cuda" and is_for_other_cuda(versions.get("fbgemm-gpu", ""))):
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


def install_for_cuda(python: Path, extras: list[str], trio: Trio) -> Trio:
    """A source that has 2.13.0+cpu or 2.13.0+cu126 beside 2.13.0 wins by that: pip holds the longer for the newer."""
    print(f"installing torch {trio.torch} and its companions for CUDA (several GB)", flush=True)
    pip_install(python, ["--no-deps", "-e", str(ROOT)])
    pins = [f"torch=={trio.torch}", f"fbgemm-gpu=={trio.fbgemm}", f"torchrec=={trio.torchrec}"]
    pip_install(python, [*other_requirements(read_requirements(python), extras), *pins])
    torch = installed_versions(python).get("torch", "")
    if not is_for_other_cuda(torch):
        return trio
    plain = torch.partition("+")[0]
    print(f"pip took torch {torch}, which fbgemm-gpu does not fit: taking {plain} itself", flush=True)
    if not pip_install(python, [f"torch==={plain}"], may_lack=f"torch==={plain}"):
        raise SetupError(
            f"pip's sources have torch {torch}, and fbgemm-gpu needs the build for CUDA {WHEELS_CUDA[0]}, "
            f"torch {plain}: "
            "leave out the extra index (PIP_EXTRA_INDEX_URL, pip config list), or name a folder with that wheel, "
            "PIP_FIND_LINKS=FOLDER"
        )
    return trio


def install_for_cu126(python: Path, extras: list[str], trio: Trio) -> Trio:
    """PyTorch's builds for CUDA 12.6, which drivers from 525 on run; torchrec is the same for all."""
    print(f"installing torch {trio.torch} and its companions for CUDA 12.6 (several GB)", flush=True)
    pins = [f"torch=={trio.torch}+cu126", f"fbgemm-gpu=={trio.fbgemm}+cu126", f"torchrec=={trio.torchrec}"]
    index = ["--extra-index-url", PYTORCH_CU126_INDEX]
    pip_install(python, [*index, "-e", f"{ROOT}[{','.join(extras)}]", *pins])
    return trio


def install_for_cpu(python: Path, extras: list[str], trios: list[Trio]) -> Trio:
    pip_install(python, ["--no-deps", "-e", str(ROOT)])
    trio = install_torch_for_cpu(python, trios)
    plan = plan_for_cpu(read_requirements(python), extras, trio)
    print("installing what goes with it", flush=True)
    pip_install(python, plan.resolved)
    pip_install(python, ["--no-deps", *plan.bare])
    print("`pip check` will say that torchrec misses fbgemm-gpu: fbgemm-gpu-cpu is in its place, all is well")
    return trio


def install_torch_for_cpu(python: Path, trios: list[Trio]) -> Trio:
    """The first trio of which the nearest source has a CPU build; failing that, the first, in the build for both."""
    print(f"installing torch for CPU, {' or '.join(trio.torch for trio in trios)}", flush=True)
    for index in ([], ["--extra-index-url", PYTORCH_CPU_INDEX, "--retries", "1"]):
        if index:
            print(
                f"pip's configured sources have none for this Python: trying {PYTORCH_CPU_INDEX}", flush=True
            )
        for trio in trios:
            cpu_build = f"torch=={trio.torch}+cpu"
            if pip_install(python, ["--no-deps", *index, cpu_build], may_lack=cpu_build):
                return trio
    torch = f"torch=={trios[0].torch}"
    print(
        f"that is out of reach: taking {torch} with CUDA, which runs on CPU too but is several GB larger",
        flush=True,
    )
    if not pip_install(python, ["--no-deps", torch], may_lack=torch):
        raise SetupError(
            f"neither pip's configured sources nor {PYTORCH_CPU_INDEX} have {torch} or {torch}+cpu. "
            "Put a wheel in a folder and name it: PIP_FIND_LINKS=FOLDER make setup"
        )
    return trios[0]


def read_requirements(python: Path) -> list[str]:
    """What the project's metadata asks for, extras included."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('dlrm-app')))"
    return json.loads(output([str(python), "-c", code]))


def plan_for_cpu(requirements: list[str], extras: list[str], trio: Trio) -> CpuPlan:
    """The project's ``requirements`` with ``trio``'s packages for CPU in the place of the three."""
    pins = [f"torch=={trio.torch}", f"fbgemm-gpu-cpu=={trio.fbgemm}"]
    return CpuPlan([*pins, *other_requirements(requirements, extras)], [f"torchrec=={trio.torchrec}"])


def other_requirements(requirements: list[str], extras: list[str]) -> list[str]:
    """The project's ``requirements``, as its metadata has them, without torch, fbgemm and torchrec.

    Their ranges are for pip alone, which must not choose an older trio; here the user may.
    """
    others = []
    for requirement in requirements:
        text, _, marker = (part.strip() for part in requirement.partition(";"))
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
        if extra and extra.group(1) not in extras:
            continue
        name = re.match(r"[\w.-]+", text).group().lower()
        if name not in ("torch", "fbgemm-gpu", "torchrec"):
            others.append(text)
    return others


def pip_install(python: Path, arguments: list[str], may_lack: str | None = None) -> bool:
    """Runs pip; gives False if its sources lack ``may_lack``, or a constraint rules it out.

    Raises SetupError for any other failure.
    """
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return True
    lacking = (f"No matching distribution found for {may_lack}", f"Cannot install {may_lack} because")
    if may_lack is not None and any(text in done.stderr for text in lacking):
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
