"""Ranks on two machines, which share a store and no disk, train into one run there."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.commands import command, on_two_machines, succeed
from tests.integration.test_kept_folders import objects, tensors
from tests.loader.dataset_fixture import write_dataset
from tests.preprocessing.running import content
from tests.small_run import SMALL, final_bytes

pytestmark = pytest.mark.long

TRAIN = ["train", *SMALL, "trainer.threads=1", "report.enabled=false", "evaluation.test=false"]
IN_STORE = ["data.path=s3://clicks/day", "output=s3://clicks/run", "checkpoint.keep_last=1", "resume=auto"]


def test_two_machines_train_into_one_run_and_empty_ones_resume_it(
    s3: Any, tmp_path: Path, stores: Path
) -> None:
    rows = {"train": 2048, "val": 512}
    disk = write_dataset(tmp_path / "disk", rows, rows_per_group=128, rows_per_shard=128)
    for name, data in content(disk.folder).items():
        s3.put_object(Bucket="clicks", Key=f"day/{name}", Body=data)
    given = [f"data.path={disk.folder}", f"output={tmp_path}/run", "trainer.epochs=2"]
    succeed(command(TRAIN[0], *TRAIN[1:], *given, ranks=2), tmp_path)
    folders = [tmp_path / "here", tmp_path / "there"]
    on_two_machines(folders, [*TRAIN, *IN_STORE, "trainer.epochs=1"])
    for folder in folders:  # each has written its own rank's file alone
        assert len([*folder.rglob("*.tensors")]) <= 1
        shutil.rmtree(folder)
    on_two_machines(folders, [*TRAIN, *IN_STORE, "trainer.epochs=2"])
    kept = objects(s3, "run")
    saved = {name.rpartition("/")[2]: data for name, data in tensors(kept).items()}
    assert saved == final_bytes(tmp_path / "run")
    assert saved.keys() == {"rank-00000.tensors", "rank-00001.tensors"}
    # the checkpoint before is gone, with what the other machine had sent
    assert len({name.split("/")[1] for name in kept if name.startswith("checkpoints/")}) == 1
    evaluated = command(
        "evaluate", "checkpoint=s3://clicks/run", "split=val", f"output={tmp_path}/evaluated.json"
    )
    succeed(evaluated, tmp_path)
    wanted = json.loads((tmp_path / "run" / "result.json").read_text())["evals"]["val"]["auc"]
    assert f"{wanted:.5f}"[:7] in (tmp_path / "evaluated.json").read_text()
