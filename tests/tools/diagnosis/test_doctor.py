"""The whole command in broken and sound installations: it ends by itself, says what is wrong, and how to mend it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlrm_app.machine import Driver
from dlrm_app.tools.diagnosis import examine, probes
from dlrm_app.tools.diagnosis.examine import State
from dlrm_app.tools.diagnosis.probes import Answer
from tests.bare_venv import make_bare_venv

ROOT = Path(__file__).resolve().parents[3]

THE_THREE = {"torch", "torchrec", "fbgemm_gpu", "fbgemm_gpu_cpu"}

# enough of torch for the probe that loads it
LIGHT_TORCH = """
class version:
    cuda = None
class cuda:
    device_count = staticmethod(lambda: 0)
def get_num_threads():
    return 1
"""


OLD_DRIVER = """
def init():
    raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020). Update it.")
cuda.init = staticmethod(init)
"""

DRIVER = Driver("/proc/driver/nvidia is there", "580.65.06", (13, 0))


def run_doctor(folder, python=sys.executable, **packages):
    """The command's exit code, table and errors, with fake ``packages`` (name: code of __init__) on the path first."""
    for name, code in packages.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [str(python), "-m", "dlrm_app.cli", "doctor"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def row(table, check):
    [line] = [line for line in table.splitlines() if line.startswith(f"{check:20} ")]
    return line


@pytest.mark.slow
def test_a_torch_that_crashes_on_import_is_a_row_not_a_crash(tmp_path):
    code, table, errors = run_doctor(tmp_path, torch="import os; os.kill(os.getpid(), 11)")
    assert code == 1
    assert "WRONG  crashed with SIGSEGV" in row(table, "torch loads")
    assert "not tried" in row(table, "fbgemm loads")
    assert "pip uninstall -y torch torchrec fbgemm-gpu fbgemm-gpu-cpu" in table
    assert "Traceback" not in errors


def test_an_undefined_symbol_is_explained_as_a_wrong_pair(tmp_path):
    code, table, _ = run_doctor(
        tmp_path,
        torch=LIGHT_TORCH,
        fbgemm_gpu="raise ImportError('fbgemm_gpu_py.so: undefined symbol: _ZN3c104impl3cow')",
        torchrec="",
    )
    assert code == 1
    assert "undefined symbol: _ZN3c104impl3cow (a wrong pair of versions)" in row(table, "fbgemm loads")
    assert row(table, "torchrec loads").split()[2] == "ok"


def test_a_driver_without_a_device_is_wrong_with_what_torch_says(tmp_path, monkeypatch):
    found = judge_no_gpu(DRIVER, cuda="13.0", why_no_gpu="No CUDA GPUs are available")
    assert found.state is State.WRONG
    assert "torch sees no GPU: No CUDA GPUs are available" in found.result
    assert "--gpus all" in found.fix
    old = judge_no_gpu(Driver("seen", "535.183.01", (12, 2)), cuda="13.0", why_no_gpu="too old")
    assert "update the NVIDIA driver" in old.fix
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert judge_no_gpu(DRIVER, cuda="13.0", why_no_gpu="").state is State.NOTE
    assert judge_no_gpu(DRIVER, cuda=None, why_no_gpu=None).state is State.OK


def judge_no_gpu(driver, **facts):
    return examine.judge_no_gpu(driver, Answer(facts))


def test_a_too_old_driver_is_wrong_for_cuda_and_a_note_for_cpu():
    old = Driver("seen", "535.183.01", (12, 2))
    assert [examine.judge_driver(old, is_for_gpus).state for is_for_gpus in (True, False)] == [
        State.WRONG,
        State.NOTE,
    ]
    assert examine.judge_driver(DRIVER, True).state is State.OK


def test_a_gpu_without_kernels_is_recognized_by_its_capability():
    memory = {"free": 2**30, "total": 2**31}
    turing = examine.describe_gpu(0, {"name": "Tesla T4", "capability": [7, 5], **memory})
    assert (turing.check, turing.state) == ("cuda:0", State.NOTE)
    assert "compute capability 7.5: fbgemm-gpu's wheels have kernels for 8.x" in turing.result
    ampere = examine.describe_gpu(1, {"name": "NVIDIA A100", "capability": [8, 0], **memory})
    assert (ampere.state, ampere.result) == (
        State.OK,
        "NVIDIA A100, compute capability 8.0, 1.0 GiB free of 2.0",
    )


def test_a_torch_that_sees_no_gpu_says_why(tmp_path):
    """Its probe asks it to use one; the fake one answers as torch does on an old driver."""
    (tmp_path / "torch.py").write_text(LIGHT_TORCH.replace("cuda = None", "cuda = '13.0'", 1) + OLD_DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, probes.__file__, "load", "torch"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "driver on your system is too old (found version 12020)" in done.stdout


def test_it_works_where_torch_fbgemm_and_torchrec_are_missing(tmp_path):
    python = make_bare_venv(tmp_path / "venv", lambda name: name.split("-")[0] not in THE_THREE)
    code, table, errors = run_doctor(tmp_path, python)
    assert code == 1
    for package in ("torch", "fbgemm", "torchrec"):
        assert "not installed" in row(table, package)
    assert "No module named 'torch'" in row(table, "torch loads")
    assert "Traceback" not in errors


def test_it_works_where_nothing_at_all_is_installed(tmp_path):
    python = make_bare_venv(tmp_path / "venv", lambda name: False)
    code, table, errors = run_doctor(tmp_path, python)
    assert code == 1
    assert "not installed" in row(table, "torch")
    assert "install dlrm-app with all that it requires" in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_sound_installation_passes_every_check(tmp_path):
    code, table, errors = run_doctor(tmp_path)
    assert code == 0, table + errors
    assert "WRONG" not in table
    assert "ok     a step of a table differs from nn.EmbeddingBag by" in row(table, "fbgemm on cpu")
    assert "all_reduce and all_to_all, 2 process(es)" in row(table, "gloo")
