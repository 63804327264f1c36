"""Machine code on disk goes with all the files that it was made of."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlrm_app
from dlrm_app.kernels.compiled import forget_other_versions

CALLEE = "from numba import njit\n\n@njit(cache=True)\ndef add(x):\n    return x + {}\n"
CALLER = (
    "from numba import njit\nfrom callee import add\n\n@njit(cache=True)\ndef call(x):\n    return add(x)\n"
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "callee.py").write_text(CALLEE.format(1))
    return tmp_path


def called(package: Path) -> tuple[int, int]:
    """(what the caller gives for 0, how many functions a new process loaded from the disk for that)."""
    code = "import caller; print(caller.call(0), sum(caller.call.stats.cache_hits.values()))"
    environment = {**os.environ, "PYTHONPATH": str(package)}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    result, hits = said.stdout.split()
    return int(result), int(hits)


@pytest.mark.slow
def test_a_changed_callee_is_compiled_into_its_callers_again(package: Path) -> None:
    forget_other_versions(package)
    assert called(package) == (1, 0)
    forget_other_versions(package)
    assert called(package) == (1, 1)  # nothing has changed
    (package / "callee.py").write_text(CALLEE.format(20))
    assert called(package)[0] == 1, (
        "numba itself looks at callees now: dlrm_app.kernels.compiled is needed no more"
    )
    forget_other_versions(package)
    assert called(package) == (20, 0)


def test_the_first_compiled_function_checks_the_package() -> None:
    importlib.import_module("dlrm_app.kernels.hashing")
    assert (Path(dlrm_app.__file__).parent / "__pycache__" / "compiled.sha256").is_file()


def test_a_package_that_cannot_be_written_is_left_alone(package: Path) -> None:
    (package / "__pycache__").write_text("in the way of a folder")
    forget_other_versions(package)
    assert (package / "__pycache__").read_text() == "in the way of a folder"


def test_compiling_is_said_once() -> None:
    code = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from dlrm_app.kernels.compiled import njit\n"
        "add, double = njit(lambda x: x + 1), njit(lambda x: 2 * x)\n"
        "add(1); add(2); double(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("compiling") == 1
