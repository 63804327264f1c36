"""Makes a virtual environment in which torch, fbgemm and torchrec fit together, on this machine.

    python3 scripts/setup.py                  # what `make setup` runs
    python3 scripts/setup.py --device=cpu     # CPU wheels in spite of an NVIDIA driver
    python3 scripts/setup.py --trio=2.13      # this torch, with the fbgemm and torchrec that are built for it

uv installs, with pip's configuration; pip does what uv cannot. Chosen here are the build of torch and fbgemm's name:
torchrec's metadata asks for `fbgemm-gpu`, which cannot be imported where there is no driver. So torchrec comes without
its dependencies (the project names them all). Standard library only; the versions of the three stand in
dlrm_app/machine.py, all others in pyproject.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# not installed yet: found below the root
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
from scripts.installer import Installer, SetupError, output  # noqa: E402

OLDEST, NEWEST = PYTHONS
STAMP = "dlrm-app-setup.json"
PYTORCH_CU126_INDEX = "https://download.pytorch.org/whl/cu126"
CU126_TRIO = next(trio for trio in TRIOS if trio.name == "2.13")
"""The newest whose builds for CUDA 12.6 upstream names (FBGEMM's pull request 5976); there are none for 12.8."""


class Machine(NamedTuple):
    """What the choice depends on. ``driver`` None: there is no NVIDIA driver."""

    python: tuple[int, int]
    system: str
    processor: str
    driver: Driver | None


class Choice(NamedTuple):
    """``device`` is cpu, cuda or cu126."""

    device: str
    reason: str


class Source(NamedTuple):
    """A torch to try, from pip's sources and ``index``; ``note`` is printed before."""

    trio: Trio
    torch: str
    index: str | None = None
    note: str | None = None


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
    if installed.get("device") != choice.device:  # fbgemm's builds share a folder: where one goes, both go
        output([str(python), "-m", "pip", "uninstall", "-q", "-y", "fbgemm-gpu", "fbgemm-gpu-cpu"])
    taken = install_all(Installer(python), choice.device, extras, trios)
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
            f"{machine.driver.fault}. Update the driver. Where it must stay: make setup DEVICE=cu126 installs wheels "
            "for CUDA 12.6 (driver 525 or newer; A100, A10, L4, L40, H100, H200); NVIDIA's package "
            "cuda-compat-13-0 makes drivers of datacentre GPUs run CUDA 13 once its folder is in LD_LIBRARY_PATH; "
            "make setup DEVICE=cpu leaves the GPU unused (docs/versions.md)"
        )
    return Choice("cuda", f"{machine.driver} (DEVICE=cpu installs CPU wheels all the same)")


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def find_python() -> str:
    """A fitting Python on the path, the newest first; the name of one to install if there is none."""
    names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    return next((name for name in names if shutil.which(name)), "python3.12 (after installing it)")


def find_trios(device: str, wanted: str, installed: dict[str, object]) -> list[Trio]:
    """The trios to try, the best first: the one ``wanted``; for auto the one ``installed``, else all that fit."""
    if device == "cu126":
        if wanted in ("auto", CU126_TRIO.name):
            return [CU126_TRIO]
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
        output([sys.executable, "-m", "venv", str(venv)])
    found = output([str(python), "-c", "import sys; print(*sys.version_info[:2])"]).split()
    if found != [str(part) for part in version]:
        raise SetupError(
            f"{venv} holds Python {'.'.join(found)}, not {dotted(version)}: "
            f"rm -r {venv}, or name that Python with PYTHON=python{'.'.join(found)}"
        )
    return python


def install_all(installer: Installer, device: str, extras: list[str], trios: list[Trio]) -> Trio:
    """Installs the project, the first torch that can be had, and what goes with it."""
    installer.install("--no-deps", "-e", str(ROOT))
    trio, torch = install_torch(installer, device, trios)
    print("installing what goes with it", flush=True)
    fbgemm = f"fbgemm-gpu{'-cpu' if device == 'cpu' else ''}=={trio.fbgemm}"
    others = other_requirements(read_requirements(installer.python), extras)
    if device == "cu126":
        installer.install(torch, f"{fbgemm}+cu126", *others, index=PYTORCH_CU126_INDEX)
    else:
        installer.install(torch, fbgemm, *others)
    installer.install("--no-deps", f"torchrec=={trio.torchrec}")
    if device == "cpu":
        print(
            "`pip check` will say that torchrec misses fbgemm-gpu: fbgemm-gpu-cpu is in its place, all is well"
        )
    return trio


def install_torch(installer: Installer, device: str, trios: list[Trio]) -> tuple[Trio, str]:
    """The first of ``torch_sources`` that can be had, with its requirement. Raises SetupError without any."""
    print(f"installing torch for {device}, {' or '.join(trio.torch for trio in trios)}", flush=True)
    sources = torch_sources(device, trios)
    for trio, torch, index, note in sources:
        if note:
            print(note, flush=True)
        if installer.install("--no-deps", torch, index=index, may_lack=torch):
            return trio, torch
    raise SetupError(
        f"pip's configured sources (pip config list) lack {' or '.join({s.torch: 0 for s in sources})}, and "
        "PyTorch's index was no help. Put a wheel in a folder and name it: PIP_FIND_LINKS=FOLDER make setup"
    )


def torch_sources(device: str, trios: list[Trio]) -> list[Source]:
    """For CPU the nearest place with a CPU build decides, and the newest trio there; a build for both is the last.

    For CUDA the version is exact at first, because 2.13.0+cpu and 2.13.0+cu126 count as newer than 2.13.0.
    """
    first = trios[0]
    if device == "cu126":
        return [Source(first, f"torch=={first.torch}+cu126", PYTORCH_CU126_INDEX)]
    if device == "cuda":
        build = "+cu" + "".join(map(str, WHEELS_CUDA))
        return [Source(first, f"torch==={first.torch}"), Source(first, f"torch=={first.torch}{build}")]
    near = [Source(trio, f"torch=={trio.torch}+cpu") for trio in trios]
    far = [source._replace(index=PYTORCH_CPU_INDEX) for source in near]
    trying = f"pip's configured sources have none for this Python: trying {PYTORCH_CPU_INDEX}"
    larger = "that is out of reach: taking torch with CUDA, which runs on CPU too but is several GB larger"
    last = Source(first, f"torch=={first.torch}", note=larger)
    return [*near, far[0]._replace(note=trying), *far[1:], last]


def read_requirements(python: Path) -> list[str]:
    """What the project's metadata asks for, extras included."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('dlrm-app')))"
    return json.loads(output([str(python), "-c", code]))


def other_requirements(requirements: list[str], extras: list[str]) -> list[str]:
    """The project's ``requirements``, as its metadata has them, without torch, fbgemm and torchrec.

    Their ranges are for pip alone, which must not choose an older trio; here the user may.
    """
    others = []
    for requirement in requirements:
        text, _, marker = (part.strip() for part in requirement.partition(";"))
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
        name = re.match(r"[\w.-]+", text).group().lower()
        if (not extra or extra.group(1) in extras) and name not in ("torch", "fbgemm-gpu", "torchrec"):
            others.append(text)
    return others


if __name__ == "__main__":
    main()
