"""A table begins with the same weights on a GPU as on CPU, and they are remembered in host memory."""

import pytest
import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.model.initial_weights import init_tables
from dlrm_app.tables.bags import meta_bags
from dlrm_app.tables.specs import Table
from dlrm_app.training import table_health as changed_rows
from dlrm_app.training.table_health import InitialWeights, hash_chunks
from tests.cuda_without_gpu.make_believe import CPU, GPU, MakeBelieveGpu
from tests.random_batches import TABLES


def fresh_tables() -> EmbeddingBagCollection:
    return meta_bags(TABLES).to_empty(device=CPU)


def test_weights_are_those_of_the_cpu() -> None:
    on_cpu, on_gpu = fresh_tables(), fresh_tables()
    init_tables(on_cpu, TABLES, seed=3)
    with MakeBelieveGpu():
        on_gpu.to(GPU)
        init_tables(on_gpu, TABLES, seed=3)
        for name, weight in on_gpu.state_dict().items():
            assert weight.is_cuda
            assert torch.equal(weight.cpu(), on_cpu.state_dict()[name])


def test_hashes_take_no_memory_of_the_gpu() -> None:
    rows = torch.rand(6, 4)
    with MakeBelieveGpu():
        hashes = hash_chunks(torch.split(rows.to(GPU), 4))
        assert not hashes.is_cuda
    assert torch.equal(hashes, hash_chunks([rows]))


def test_changed_rows_are_found_as_on_cpu() -> None:
    changes = {}
    with start_runtime(num_threads=1):
        for device in (CPU, GPU):
            tables = fresh_tables()
            with MakeBelieveGpu():
                tables.to(device)
                init_tables(tables, TABLES, seed=3)
                before = InitialWeights(tables, TABLES, device)
                tables.state_dict()["embedding_bags.long.weight"][5:8] += 1
                changes[device] = before.compare()
    assert changes[GPU] == changes[CPU]
    assert [changed for _, changed in changes[GPU].values()] == [0, 0, 3]


def test_a_gpu_takes_a_large_table_in_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece costs it some kernels, whatever its size; a CPU's piece has to fit its caches."""
    table = Table("large", 1 << 17, 128, ("f1",))
    sizes: list[int] = []
    hash_rows = changed_rows.hash_rows
    monkeypatch.setattr(
        changed_rows, "hash_rows", lambda rows: (sizes.append(rows.numel()), hash_rows(rows))[1]
    )
    with start_runtime(num_threads=1), MakeBelieveGpu():
        for device, piece in ((CPU, 1 << 20), (GPU, 1 << 24)):
            tables = meta_bags([table]).to_empty(device=CPU).to(device)
            InitialWeights(tables, [table], device)
            assert sizes == [piece] * ((1 << 24) // piece)
            sizes.clear()
