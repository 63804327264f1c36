"""A probe's crash, hang or nonsense becomes an answer."""

import pytest

from dlrm_app.tools.diagnosis.probes import Answer, probe
from tests.commands import is_alive, wait_until


@pytest.fixture
def ask(tmp_path):
    def ask(code, timeout=30.0):
        (tmp_path / "script.py").write_text(code)
        return probe("load", timeout=timeout, script=str(tmp_path / "script.py"))

    return ask


def test_the_last_line_is_the_answer(ask):
    assert ask("print('chatter'); print('{\"x\": 1}')") == Answer({"x": 1})


CHAINED = """
try:
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")
except OSError as error:
    raise RuntimeError("could not load") from error
"""


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed with SIGSEGV"),
        (CHAINED, "OSError: libnvidia-ml.so.1: cannot open shared object file"),  # the first is the cause
        ("raise ImportError('libfbgemm.so: undefined symbol: _ZN3c10')", "undefined symbol: _ZN3c10"),
        ("print('hello')", "an unreadable answer"),
        ("", "an unreadable answer"),
    ],
)
def test_a_crash_an_exception_and_nonsense_are_faults(ask, code, fault):
    assert fault in ask(code).fault


@pytest.mark.slow
def test_a_hang_ends_with_all_processes_that_it_started(ask, tmp_path):
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    assert "no answer within 3 s" in ask(code, timeout=3).fault
    wait_for_end(int((tmp_path / "pid").read_text()))


def wait_for_end(pid):
    wait_until(lambda: not is_alive(pid), 30, "the end of the probe's child")


def test_a_probe_leaves_no_process_behind_when_it_ends_well(ask, tmp_path):
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
print("{{}}")
"""
    assert ask(code).fault is None
    wait_for_end(int((tmp_path / "pid").read_text()))
