"""A training whose dataset is in a store: it begins at once, and has the weights of one on a disk."""

from pathlib import Path
from typing import Any

import pytest

import dlrm_app as dlrm
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError
from dlrm_app.loader.batch_order import train_order
from tests.commands import command, on_two_machines, succeed
from tests.integration.faulty_store import Fault, FaultyStore
from tests.loader.dataset_fixture import write_dataset
from tests.preprocessing.running import content
from tests.refusals import refused
from tests.small_run import SMALL, final_bytes

TRAIN = [*SMALL, "trainer.threads=1", "report.enabled=false", "trainer.epochs=1", "evaluation.test=false"]
IN_STORE = "data.path=s3://clicks/day"
SHARD = "day/train/part-00001.parquet"


@pytest.fixture
def disk(s3: Any, tmp_path: Path) -> Manifest:
    """16 shards of train with one row group each, on the disk and in the store."""
    rows = {"train": 2048, "val": 512, "test": 512}
    manifest = write_dataset(tmp_path / "disk", rows, multi_hot=(), rows_per_group=128, rows_per_shard=128)
    for name, data in content(manifest.folder).items():
        s3.put_object(Bucket="clicks", Key=f"day/{name}", Body=data)
    return manifest


def shards_in(folder: Path, split: str) -> set[str]:
    return {path.name for path in folder.rglob(f"{split}/part-*.parquet")}


@pytest.mark.long
def test_a_training_has_the_weights_of_a_disk_and_fetches_each_shard_that_it_reads_once(
    disk: Manifest, faulty: FaultyStore, tmp_path: Path
) -> None:
    dlrm.train(*TRAIN, f"data.path={disk.folder}", output=str(tmp_path / "a"))
    dlrm.train(*TRAIN, "trainer.epochs=2", IN_STORE, output=str(tmp_path / "b"))
    dlrm.train(*TRAIN, IN_STORE, output=str(tmp_path / "c"))
    assert final_bytes(tmp_path / "c") == final_bytes(tmp_path / "a")
    assert faulty.count("GET", "day/train/.*") == 16
    assert faulty.count("GET", "day/test/.*") == 0
    scores = dlrm.predict(
        f"model={tmp_path}/b", IN_STORE, "split=test", output=str(tmp_path / "scores.parquet")
    )
    assert scores.rows == 512
    assert faulty.count("GET", "day/test/.*") == 4
    assert dlrm.check(IN_STORE).problems == []


@pytest.mark.slow
def test_a_shard_that_comes_with_other_bytes_is_fetched_once_more_then_named(
    disk: Manifest, faulty: FaultyStore, tmp_path: Path, stores: Path
) -> None:
    faulty.fault = lambda method, key: Fault(flip=(method, key) == ("GET", SHARD))
    with refused(DataError, f"s3://clicks/{SHARD}", "has other bytes than were written (checksum)"):
        dlrm.train(*TRAIN, IN_STORE, output=str(tmp_path / "run"))
    assert faulty.count("GET", SHARD) == 2
    assert "part-00001.parquet" not in shards_in(stores, "train")
    faulty.fault = lambda method, key: Fault(flip=key == SHARD and faulty.count("GET", SHARD) == 3)
    dlrm.train(*TRAIN, IN_STORE, output=str(tmp_path / "run2"))
    assert faulty.count("GET", SHARD) == 4


@pytest.mark.long
def test_ranks_fetch_the_shards_of_their_own_lanes(
    disk: Manifest, faulty: FaultyStore, tmp_path: Path, stores: Path
) -> None:
    succeed(command("train", *TRAIN, IN_STORE, f"output={tmp_path}/one", ranks=2), tmp_path)
    assert faulty.count("GET", "day/train/.*") == 16  # ranks of a machine share its disk
    folders = [tmp_path / "here", tmp_path / "there"]
    on_two_machines(folders, ["train", *TRAIN, IN_STORE, f"output={tmp_path}/two"])
    assert final_bytes(tmp_path / "one") == final_bytes(tmp_path / "two")
    order = train_order([128] * 16, global_batch_size=128, lanes=8, seed=0, epoch=0, rank=1, world_size=2)
    own = {f"part-{group:05d}.parquet" for group in order.groups_by_need()}
    found = [shards_in(folder, "train") for folder in folders]
    # the first rank looks at a sample of all rows, to judge the scores
    assert own in found
    assert len(own) == 8
