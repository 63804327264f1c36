"""Numbers below 1e-38, whose products are a hundred times slower on some CPUs, count as zero on ranks."""

import subprocess
import sys

import pytest
import torch

PRODUCTS = """
import torch
from dlrm_app.distributed.runtime import start_runtime

def left():
    return int((torch.full((1 << 20,), 1e-30) * 1e-12).count_nonzero())  # rows for every thread

with start_runtime(2):
    during = left()
    small = float(torch.full((1,), 1e-37))
print(during, small, float(torch.full((1,), 1e-30) * 1e-12))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU always computes with them")
def test_every_thread_takes_them_for_zero_until_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, check=True)
    during, normal, after = map(float, done.stdout.split())
    assert during == 0
    assert normal == pytest.approx(1e-37)
    assert after == pytest.approx(1e-42, rel=1e-2)
