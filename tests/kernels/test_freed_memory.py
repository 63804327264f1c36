"""What a step frees is there for the next, without the system's help."""

import ctypes
import subprocess
import sys

import pytest

COUNT = """
import resource
import statistics
import torch
from dlrm_app.distributed.runtime import start_runtime

def step():
    [torch.ones(size << 18) for size in range(1, 17)]  # 1 to 16 MiB

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with start_runtime(1):
    print(statistics.median(faults() for _ in range(13)))  # other threads may make the heap grow once more
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's")
def test_the_next_step_asks_the_system_for_no_page() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20  # of 34,816, were none kept
