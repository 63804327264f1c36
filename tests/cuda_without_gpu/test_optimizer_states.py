"""States of CUDA's kernels have the names and shapes of the CPU's and of the registry: one checkpoint fits both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from fbgemm_gpu.split_embedding_configs import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice
from torchrec.distributed import batched_embedding_kernel

from dlrm_app.sharding.sharder import fused_kernels
from dlrm_app.tables.sparse_optimizers import ROW, SPARSE_OPTIMIZERS
from dlrm_app.tables.table import table_of
from tests.cuda_without_gpu.fake_ranks import compose_plan, fake_rank, make_plan, shard_on_meta

TABLES = """\
embedding_dim: 8
specs:
  - {name: wide, rows: 100, features: [a, b]}
  - {name: narrow, rows: 50, dim: 4, features: [c]}
"""
TOPOLOGY = ["topology.nodes=1", "topology.devices_per_node=1", "topology.memory_gib=1"]


@contextmanager
def kernels_of_cuda() -> Iterator[None]:
    """torchrec makes CUDA's kernels, with rows in the GPU's memory, on the meta device."""
    devices = SimpleNamespace(CPU=ComputeDevice.CUDA)
    places = SimpleNamespace(HOST=EmbeddingLocation.DEVICE)
    with (
        mock.patch.object(batched_embedding_kernel, "ComputeDevice", devices),
        mock.patch.object(batched_embedding_kernel, "EmbeddingLocation", places),
    ):
        yield


def states(kind: str, device: str, folder: Path) -> dict[tuple[str, str], tuple[int, ...]]:
    """(table, name in a checkpoint) → shape, of every optimizer state."""
    config = compose_plan(
        f"tables={folder}/tables.yaml", f"optimizer={kind}", f"topology.device={device}", *TOPOLOGY
    )
    plan = make_plan(config)
    with fake_rank(0, plan.cluster):
        model = shard_on_meta(config, plan)
        assert {kernel.use_cpu for kernel in fused_kernels(model)} == {device == "cpu"}
        found = model.fused_optimizer.state_dict()["state"]
    return {
        (str(table_of(key)), SPARSE_OPTIMIZERS[kind].state_name(name.rpartition(".")[2])): tuple(value.size())
        for key, states in found.items()
        for name, value in states.items()
    }


@pytest.mark.parametrize("kind", SPARSE_OPTIMIZERS)
def test_names_and_shapes_are_the_registrys_and_the_cpus(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES)
    optimizer = SPARSE_OPTIMIZERS[kind]
    expected = {
        (table, name): (rows,) if kept_for == ROW else (rows, dim)
        for table, rows, dim in (("wide", 100, 8), ("narrow", 50, 4))
        for name, kept_for in optimizer.state.items()
    }
    with kernels_of_cuda():
        assert states(kind, "cuda", tmp_path) == expected
    if "cpu" in optimizer.devices:
        assert states(kind, "cpu", tmp_path) == expected
