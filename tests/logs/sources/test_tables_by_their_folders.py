"""Folders of tables that keep versions of their rows are refused, whatever part of them is named."""

from pathlib import Path

import obstore.store
import pytest
from obstore.store import MemoryStore

from dlrm_app.errors import ConfigError
from dlrm_app.logs.sources.find_sources import find_files
from tests.refusals import refused

MARKS = {
    "hudi": ".hoodie/hoodie.properties",
    "paimon": "snapshot/snapshot-1",
    "delta": "_delta_log/0.json",
    "iceberg": "metadata/v1.metadata.json",
}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("lake/0a_1.parquet", "lake/dt=1/0b_1.parquet", "lake/2026/11/22/0c_1.parquet"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"PAR1")
    return tmp_path


@pytest.mark.parametrize("kind", MARKS)
@pytest.mark.parametrize(
    "given",
    ["lake", "lake/*", "lake/**", "lake/*.parquet", "lake/dt=1", "lake/dt=*/*.parquet", ".", "lake/dt*"],
)
def test_a_folder_of_a_table_is_refused(kind: str, given: str, lake: Path) -> None:
    (mark := lake / "lake" / MARKS[kind]).parent.mkdir(parents=True)
    mark.write_text("x")
    with refused(
        ConfigError, f"input={given}", f"names files of the {kind.capitalize()} table lake, which..."
    ):
        find_files("input", given)


@pytest.mark.parametrize(
    "given", ["lake/2026", "lake/2026/11/*", "lake/2026/11/22/*.parquet", "lake/2026/**"]
)
@pytest.mark.parametrize("mark", [MARKS["hudi"], "2026/11/22/.hoodie_partition_metadata"])
def test_a_partition_of_hudi_without_keys_is_refused(given: str, mark: str, lake: Path) -> None:
    (path := lake / "lake" / mark).parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    with refused(
        ConfigError,
        f"input={given}",
        "names files of the Hudi table lake..., which may have dropped...",
        "write its rows as they are now to files, as by spark.read.format('hudi')...",
    ):
        find_files("input", given)


@pytest.mark.parametrize("given", ["lake", "lake/*", "lake/dt=1", "lake/2026/11/22/*"])
def test_hudi_in_a_store_is_refused(given: str, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(obstore.store, "from_url", lambda *_args, **_kwargs: store)
    store.put("lake/.hoodie/hoodie.properties", b"x")
    for name in ("0a.parquet", "dt=1/0b.parquet", "2026/11/22/0c.parquet"):
        store.put(f"lake/{name}", b"PAR1")
    store.put("lake/2026/11/22/.hoodie_partition_metadata", b"x")
    with refused(
        ConfigError, f"input=s3://bucket/{given}", "names files of the Hudi table s3://bucket/lake..."
    ):
        find_files("input", f"s3://bucket/{given}")


def test_folders_that_are_no_table_are_read(lake: Path) -> None:
    assert len(find_files("input", "lake")) == 3
    assert len(find_files("input", "lake/2026/11/22/*")) == 1
