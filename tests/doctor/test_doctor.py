"""The whole command in broken and sound installations: it ends by itself, says what is wrong, and how to mend it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare_venv import make_bare_venv

ROOT = Path(__file__).resolve().parents[2]

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


def run_doctor(folder, python=sys.executable, **packages):
    """The command's exit code, table and errors, with fake ``packages`` (name: code of __init__) on the path first."""
    for name, code in packages.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [str(python), "-m", "dlrm_app.cli.doctor"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def row(table, check):
    [line] = [line for line in table.splitlines() if line.startswith(f"{check:20} ")]
    return line


def fake_version(folder, name, version):
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


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


def test_mismatched_versions_are_named_with_those_that_fit(tmp_path):
    fake_version(tmp_path, "torch", "2.12.0")
    code, table, _ = run_doctor(tmp_path, torch="raise ImportError('stop here')")
    assert code == 1
    assert "torch 2.12 goes with fbgemm 1.7.0 and torchrec 1.7.0" in row(table, "the three together")


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
    assert "not installed" in row(table, "hydra-core")
    assert "examining without configuration" in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_sound_installation_passes_every_check(tmp_path):
    code, table, errors = run_doctor(tmp_path)
    assert code == 0, table + errors
    assert "WRONG" not in table
    assert "ok     a step of two tables differs from nn.EmbeddingBag by" in row(table, "fbgemm on cpu")
    assert "all_reduce and all_to_all, 2 process(es)" in row(table, "gloo")
