"""Ranks on two machines, which share a store and no disk, train into one run there."""

import json
import os
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.runs.checkpoint.names import checkpoint_name
from dlrm_app.runs.checkpoint.ranges import PART_BYTES, parts_name
from tests.commands import command, on_two_machines, start_two_machines, succeed, wait_until
from tests.integration.faulty_store import Fault, FaultyStore
from tests.integration.test_kept_folders import names, objects, tensors
from tests.loader.dataset_fixture import write_dataset
from tests.preprocessing.running import content
from tests.small_run import SMALL

pytestmark = pytest.mark.long

TRAIN = [*SMALL, "trainer.threads=1", "report.enabled=false", "evaluation.test=false", "trainer.epochs=30"]
TRAIN += ["checkpoint.every_steps=20", "checkpoint.keep_last=1", "trainer.timeout_minutes=1"]
IN_STORE = ["data.path=s3://clicks/day", "output=s3://clicks/run", "resume=auto"]


def marks(s3: Any) -> set[str]:
    return {name for name in names(s3, "run") if name.endswith("complete.json")}


def has_saved_since(s3: Any, seen: set[str]) -> bool:
    return bool(marks(s3) - seen)


def test_two_machines_train_into_one_run_and_empty_ones_continue_after_a_loss(
    s3: Any, tmp_path: Path, stores: Path
) -> None:
    rows = {"train": 2048, "val": 512}
    disk = write_dataset(tmp_path / "disk", rows, rows_per_group=128, rows_per_shard=128)
    for name, data in content(disk.folder).items():
        s3.put_object(Bucket="clicks", Key=f"day/{name}", Body=data)
    succeed(command("train", *TRAIN, f"data.path={disk.folder}", f"output={tmp_path}/run", ranks=2), tmp_path)
    folders = [tmp_path / "here", tmp_path / "there"]
    seen = set[str]()
    for killed, emptied in ((1, [1]), (0, [0, 1])):
        machines = start_two_machines(folders, ["train", *TRAIN, *IN_STORE])
        wait_until(partial(has_saved_since, s3, seen), 240, "a checkpoint")
        os.killpg(machines[killed].pid, signal.SIGKILL)  # torchrun on the other one notices
        assert machines[1 - killed].wait(240) != 0
        seen |= marks(s3)
        if killed:  # the first time each has written its own rank's file alone
            for rank, folder in enumerate(folders):
                assert {path.name for path in folder.rglob("*.tensors")} <= {f"rank-0000{rank}.tensors"}
        for number in emptied:  # another machine in its place
            shutil.rmtree(folders[number])
    on_two_machines(folders, ["train", *TRAIN, *IN_STORE])
    # the newest checkpoint and the best one, and nothing of the others
    kept, on_disk = objects(s3, "run"), content(tmp_path / "run")
    assert tensors(kept) == tensors(on_disk)
    of_checkpoints, on_disk_too = (
        {name for name in each if name.startswith("checkpoints/")} for each in (kept, on_disk)
    )
    assert of_checkpoints == on_disk_too | {
        parts_name(name) for name in on_disk_too if name.endswith(".tensors")
    }
    evaluated = "s3://clicks/evaluated.json"
    on_two_machines(folders, ["evaluate", "checkpoint=s3://clicks/run", "split=val", f"output={evaluated}"])
    wanted = json.loads((tmp_path / "run" / "result.json").read_text())["evals"]["val"]["auc"]
    said = s3.get_object(Bucket="clicks", Key="evaluated.json")["Body"].read().decode()
    assert f"{wanted:.5f}"[:7] in said


def test_ranks_on_two_machines_fetch_of_a_checkpoint_by_one_rank_the_rows_that_each_needs(
    faulty: FaultyStore, s3: Any, tmp_path: Path
) -> None:
    disk = write_dataset(tmp_path / "disk", {"train": 512, "val": 128}, one_hot=(200_000, 90_000))
    given = [
        *SMALL,
        "trainer.threads=1",
        "report.enabled=false",
        "evaluation.test=false",
        "checkpoint.keep_last=9",
    ]
    given += [
        f"data.path={disk.folder}",
        "tables.embedding_dim=32",
        "sharding.types=[row_wise]",
        "resume=auto",
    ]
    for output in (f"{tmp_path}/run", "s3://clicks/run"):
        succeed(command("train", *given, "trainer.epochs=1", f"output={output}"), tmp_path)
    succeed(command("train", *given, "trainer.epochs=2", f"output={tmp_path}/run", ranks=2), tmp_path)
    saved = f"run/checkpoints/{checkpoint_name(4)}/rank-00000.tensors"
    size = s3.head_object(Bucket="clicks", Key=saved)["ContentLength"]
    assert size > 8 * PART_BYTES
    faulty.given.clear()
    folders = [tmp_path / "here", tmp_path / "there"]
    on_two_machines(folders, ["train", *given, "trainer.epochs=2", "output=s3://clicks/run"])
    # each fetches its own half; the parts at both ends of it, and those of small tensors, come twice
    assert size <= faulty.given[saved] <= size + 8 * PART_BYTES
    assert [path for folder in folders for path in folder.rglob(f"{checkpoint_name(4)}/*.tensors")] == []
    assert tensors(objects(s3, "run")) == tensors(content(tmp_path / "run"))


def test_two_machines_score_into_one_file_and_empty_ones_continue_after_a_loss(
    faulty: FaultyStore, s3: Any, tmp_path: Path
) -> None:
    disk = write_dataset(
        tmp_path / "disk", {"train": 4096, "val": 128}, rows_per_group=128, rows_per_shard=512
    )
    train = [*SMALL, "trainer.threads=1", "report.enabled=false", "evaluation.test=false", "trainer.epochs=1"]
    succeed(command("train", *train, f"data.path={disk.folder}", f"output={tmp_path}/run"), tmp_path)
    predict = ["predict", f"model={tmp_path}/run", f"data.path={disk.folder}", "split=train", "batch_size=64"]
    succeed(command(*predict, f"output={tmp_path}/scores.parquet"), tmp_path)
    folders = [tmp_path / "here", tmp_path / "there"]
    in_store = [*predict, "output=s3://clicks/scores.parquet"]
    part = r"scores.parquet.parts/scored/(\d+-\d+)\.parquet"
    seen = set[str]()

    def sent() -> set[str]:
        return {
            match[1]
            for method, key in faulty.requests
            if method == "PUT" and (match := re.fullmatch(part, key))
        }

    def finished() -> set[str]:
        kept = names(s3, "scores.parquet.parts/scored")
        return {name.removesuffix(".json") for name in kept if name.endswith(".json")}

    def slow(method: str, key: str) -> None:
        time.sleep(
            0.5 if method == "PUT" and re.fullmatch(part, key) else 0
        )  # so that there is a time to kill

    faulty.fault = slow
    for killed in ([1], [0, 1]):
        machines = start_two_machines(folders, in_store)
        wait_until(lambda seen=seen: len(finished() - seen) >= 4, 240, "parts of scores")
        for number in killed:
            os.killpg(machines[number].pid, signal.SIGKILL)
        assert all(machine.wait(240) != 0 for machine in machines)
        seen = finished()
        assert len(seen) < 32
        for number in killed:  # another machine in its place
            shutil.rmtree(folders[number])
    faulty.fault = lambda method, key: None
    faulty.requests.clear()
    on_two_machines(folders, in_store)
    # none was scored twice, and all that ranks have needed is gone
    assert sent()
    assert not sent() & seen
    scores = s3.get_object(Bucket="clicks", Key="scores.parquet")["Body"].read()
    assert scores == (tmp_path / "scores.parquet").read_bytes()
    assert objects(s3, "scores.parquet.parts") == {}
    assert not [*folders[1].rglob("*.parquet")]


def test_a_run_ends_once_the_store_has_taken_no_checkpoint_for_the_timeout_and_continues_later(
    faulty: FaultyStore, s3: Any, tmp_path: Path
) -> None:
    disk = write_dataset(tmp_path / "disk", {"train": 512, "val": 128})
    given = [
        *SMALL,
        "trainer.threads=1",
        "report.enabled=false",
        "evaluation.test=false",
        f"data.path={disk.folder}",
    ]
    given += ["trainer.timeout_minutes=1", "checkpoint.every_steps=4", "trainer.epochs=3", "resume=auto"]
    succeed(command("train", *given, f"output={tmp_path}/run", ranks=2), tmp_path)
    is_refused = re.compile("PUT run/.*step-00000000[89]/rank-00001.tensors")
    faulty.fault = lambda method, key: Fault(status=403) if is_refused.fullmatch(f"{method} {key}") else None
    folders = [tmp_path / "here", tmp_path / "there"]
    machines = start_two_machines(folders, ["train", *given, "output=s3://clicks/run"])
    assert [machine.wait(300) for machine in machines] == [1, 1]
    said = "".join(folder.with_suffix(".log").read_text() for folder in folders)  # the first rank prints it
    assert (
        "could not be written for 1 minutes (trainer.timeout_minutes of a training): start the same" in said
    )
    assert "must not be written: there is no permission" in said
    assert marks(s3) == {f"checkpoints/{checkpoint_name(4)}/complete.json"}
    faulty.fault = lambda method, key: None
    on_two_machines(folders, ["train", *given, "output=s3://clicks/run"])
    assert tensors(objects(s3, "run")) == tensors(content(tmp_path / "run"))
