"""What `make gpu-check` packs: every test that ran in one table, and what the machine says of itself."""

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.py"
JUNIT = """<testsuites><testsuite>
<testcase name="fine" time="1.25"><properties><property name="losses differ by" value="1e-7"/></properties></testcase>
<testcase name="wrong" time="2"><failure message="assert 1 == 2&#10;more">trace</failure></testcase>
<testcase name="crashed" time="3"><failure message="EOFError">trace</failure>
<system-err>Traceback
RuntimeError: illegal | access
</system-err></testcase>
<testcase name="left out" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_test_that_ran_has_a_row_with_what_it_noted_or_why_it_failed(
    script: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert list(script.summarize(tmp_path / "junit.xml"))[1:] == [
        "| fine | passed | 1.2 | losses differ by 1e-7 |",
        "| wrong | failed | 2.0 | assert 1 == 2 |",
        "| crashed | failed | 3.0 | RuntimeError: illegal / access |",
    ]


def test_a_tool_that_is_not_there_is_said(script: ModuleType) -> None:
    assert "no-such-tool" in script.said(["no-such-tool"])


@pytest.mark.long
def test_the_archive_holds_the_results_and_the_machine(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--collect-only", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "gpu-check.tar.gz") as archive:
        found = {Path(name).name for name in archive.getnames()}
    assert {"junit.xml", "summary.md", "doctor.txt", "versions.txt", "gpus.txt", "links.txt"} <= found
