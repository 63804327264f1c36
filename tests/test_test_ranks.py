"""Ranks of tests can use a GPU: nothing that they are copied from has started the driver."""

import subprocess
import sys

import pytest

from tests.ranks import CONTEXT, PRELOADED, start_method, use_gpu

IMPORT = f"""
import importlib, torch
asked = []

def is_available():
    asked.append(1)
    assert torch.cuda._nvml_based_avail(), "this starts the driver"
    return False

def start(*_):
    raise AssertionError("this starts the driver")

torch.cuda.is_available = is_available
torch.cuda._lazy_init = torch.cuda.init = start
for module in {PRELOADED}:
    importlib.import_module(module)
print(len(asked))
"""
"""Imports what the fork server imports; asking torch for GPUs is an error unless torch asks NVML."""


@pytest.mark.long
def test_the_process_that_ranks_are_forked_from_starts_no_driver() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0  # fbgemm's import asks


@pytest.mark.parametrize(("fault", "method"), [(None, "forkserver"), ("bad fork", "spawn")])
def test_ranks_are_forks_only_if_these_can_use_gpus(
    fault: str | None, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("tests.ranks.use_gpu", lambda context: fault)
    assert start_method.__wrapped__().get_start_method() == method


def test_why_a_rank_cannot_use_a_gpu_is_one_line() -> None:
    """Without a GPU, and with a CPU build of torch, torch's own."""
    fault = use_gpu(CONTEXT)
    assert fault is None or ("\n" not in fault and "CUDA" in fault)
