"""Ctrl-C while a configuration is composed is an interruption, whatever the libraries make of it."""

import subprocess
import sys

import pytest

SCRIPT = """
import signal, time
from tests.composed import compose_config
from dlrm_app.config.evaluate import EvaluateConfig

def compose():
    compose_config("evaluate", EvaluateConfig, ["checkpoint=run", "split=test"])

def interrupt(number, frame):
    raise KeyboardInterrupt

compose()
began = time.perf_counter()
compose()
seconds, interrupted, moments = time.perf_counter() - began, 0, 100
signal.signal(signal.SIGALRM, interrupt)
for number in range(moments):
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds * (number + 1) / moments)
        compose()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted)
"""


@pytest.mark.slow
def test_ctrl_c_at_any_moment_is_an_interruption() -> None:
    """In a process of its own: this one composes in a quicker way."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) > 0
