"""The door puts kernels in place and takes them out; with another fbgemm it leaves them out, and says so once."""

import copy
import ctypes
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn
from torchrec.modules.mlp import MLP

from dlrm_app.kernels import install as door
from dlrm_app.kernels import updates
from dlrm_app.kernels.install import install, restore_operators
from dlrm_app.machine import has_old_torchrec

CPU = torch.device("cpu")

COUNT = """
import resource
import statistics
import torch
from dlrm_app.kernels.memory import keep_freed_memory

def step():
    [torch.ones(size << 18) for size in range(1, 17)]  # 1 to 16 MiB

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
keep_freed_memory()
print(statistics.median(faults() for _ in range(13)))  # other threads may make the heap grow once more
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's")
def test_the_next_step_asks_the_system_for_no_page() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20  # of 34,816, were none kept


def rows_of(weights: torch.Tensor) -> torch.Tensor:
    """Looks two rows up twice by fbgemm's operator and steps them."""
    tables = SplitTableBatchedEmbeddingBagsCodegen([(4, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)])
    tables.split_embedding_weights()[0].copy_(weights)
    tables(torch.tensor([1, 2, 1]), torch.tensor([0, 1, 3])).sum().backward()
    return tables.split_embedding_weights()[0].clone()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operators of ours that ran."""
    seen: list[str] = []
    update = updates.update_tables
    monkeypatch.setattr(updates, "update_tables", lambda *given: (seen.append("update"), update(*given)))
    yield seen
    restore_operators()


@pytest.mark.skipif(has_old_torchrec(), reason="the kernels are for newer versions of fbgemm and torchrec")
def test_libraries_takes_the_kernels_out_again(calls: list[str]) -> None:
    weights, model = torch.randn(4, 4), nn.Sequential(MLP(3, [2]))
    found = []
    for choice in ("compiled", "libraries", "compiled"):
        installed = install(copy.deepcopy(model), CPU, choice)
        found.append((rows_of(weights), installed, len(calls)))
    assert [calls for _, _, calls in found] == [1, 1, 2]
    torch.testing.assert_close(found[0][0], found[1][0])
    kinds = [{type(module).__name__ for module in installed.modules()} for _, installed, _ in found]
    assert ["LinearRelu" in kind for kind in kinds] == [True, False, True]


def test_a_gpus_model_stays_as_it_is(calls: list[str]) -> None:
    model = install(nn.Sequential(MLP(3, [2])), torch.device("cuda"), "compiled")
    rows_of(torch.randn(4, 4))
    assert not calls
    assert "LinearRelu" not in {type(module).__name__ for module in model.modules()}


def test_another_fbgemm_is_left_alone_with_one_warning(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(door.WRITTEN_FOR, "fbgemm", ("1.4", "1.5"))
    door.fits_libraries.cache_clear()
    for _ in range(2):
        install(nn.Sequential(MLP(3, [2])), CPU, "compiled")
    door.fits_libraries.cache_clear()
    rows_of(torch.randn(4, 4))
    assert not calls
    assert len(caplog.messages) == 1
    assert "written for fbgemm 1.4 and 1.5, and 1." in caplog.text
