"""Small clusters and tables to plan for."""

from collections.abc import Sequence
from typing import Any

from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.config.train import TablesConfig
from dlrm_app.sharding.cluster import GIB, Cluster
from dlrm_app.sharding.cost import Workload
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.tables.table import Table


def cluster(
    ranks: int = 4, nodes: int = 1, *, device: str = "cuda", memory: float = GIB, **more: Any
) -> Cluster:
    """``nodes`` with ``ranks`` in all, each of ``memory`` bytes, none kept back."""
    return Cluster(device, nodes, ranks // nodes, int(memory), more.pop("host_memory", 0), 0.0, **more)


def workload(
    tables: Sequence[Table], optimizer: str = "adagrad", /, batch: int = 512, **sharding: Any
) -> Workload:
    """``tables`` trained with one optimizer, under ``sharding``'s keys."""
    return Workload(
        {table.name: table for table in tables},
        ShardingConfig(**sharding),
        {table.name: optimizer for table in tables},
        frozenset(),
        batch,
    )


def one_hot(rows: int, dim: int = 16, name: str = "t", **more: Any) -> Table:
    return Table(name, rows, dim, (f"{name}_feature",), **more)


def merlin(model: str) -> list[Table]:
    """One of the shipped synthetic models."""
    import yaml

    text = (conf_dir() / "merlin" / f"{model}.yaml").read_text()
    return resolve_tables(TablesConfig(**yaml.safe_load(text)["tables"]), None)
