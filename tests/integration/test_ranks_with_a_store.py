"""Ranks that preprocess with a disk each and a store between them: the bytes of one process, whoever is killed."""

import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.errors import ConfigError, DlrmError
from dlrm_app.preprocessing.preprocess import preprocess
from dlrm_app.preprocessing.summary import Dataset
from dlrm_app.preprocessing.work import meeting, rank_executor
from dlrm_app.preprocessing.work.stored_folder import SharedInStore, stored_output
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.local import is_record
from dlrm_app.stores.mirror import Mirror
from tests.commands import command, succeed, wait_until
from tests.integration.test_kept_folders import WORDS, names, objects
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import configure, content, run
from tests.preprocessing.sharing import rank_of
from tests.preprocessing.test_ranks import MORE_WAYS, SMALL, of_way
from tests.preprocessing.test_same_bytes import WAYS
from tests.refusals import refused

URL = "s3://clicks/made"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of 10,000 bytes, and ranks that look at each other often."""
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 10_000)
    monkeypatch.setattr(meeting, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(meeting, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(rank_executor, "_LIST_SECONDS", 0.02)


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    (tmp_path / "a.tsv").write_bytes(make_clicks(180, 1, bad_every=40))
    (tmp_path / "b.tsv").write_bytes(make_clicks(120, 2, bad_every=40)[:-1])
    return tmp_path


def start(num_ranks: int, *given: str, ranks: Sequence[int] = ()) -> list[Future[Dataset]]:
    """Starts ``ranks`` of ``num_ranks``, or all, as threads; each has a local folder of its own."""
    KeptFolder.of(URL).stored.list()  # the library cannot be imported by several threads at once
    pool = ThreadPoolExecutor(num_ranks)

    def work(rank: int) -> Dataset:
        with stored_output(KeptFolder.of(URL), rank) as folder:
            return preprocess(configure(*given, "threads=1", f"output={folder}"), rank_of(rank, num_ranks))

    return [pool.submit(work, rank) for rank in ranks or range(num_ranks)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "num_ranks"), [("vocab", 3), *((way, 2) for way in (*WAYS, *MORE_WAYS) if way != "vocab")]
)
@pytest.mark.usefixtures("small")
def test_any_number_of_ranks_makes_the_bytes_of_one_process_on_a_disk(
    s3: Any, clicks: Path, stores: Path, way: str, num_ranks: int
) -> None:
    """Ranks other than 0 leave nothing on their disks but what readers fetch."""
    given = of_way(clicks, way)
    if way == "grown":
        run(clicks / "parent", f"input.train={clicks}/a.tsv", *SMALL, "encoding=vocab", "encoding.day=1")
        given = [each.format(parent=clicks / "parent") for each in given]
    whole = run(clicks / "whole", *given)
    made = [each.result(240) for each in start(num_ranks, *given)]
    assert objects(s3, "made") == content(clicks / "whole")
    assert [each.manifest.splits for each in made] == [whole.splits] * num_ranks
    folder = KeptFolder.of(URL).folder
    assert [*folder.parent.iterdir()] == [folder]
    assert not {*content(folder)} - {*content(clicks / "whole")}
    again = [each.result(240) for each in start(num_ranks, *given)]  # finished already
    assert [each.manifest for each in again] == [made[0].manifest] * num_ranks


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_a_rank_that_is_gone_for_good_is_named_and_other_numbers_of_ranks_continue(
    s3: Any, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, show = of_way(clicks, "hash"), SharedInStore.show

    def die(self: SharedInStore) -> None:
        if threading.current_thread().name.endswith("_2"):
            show(self)
            raise KeyboardInterrupt  # without a word, as by kill -9
        show(self)

    with monkeypatch.context() as patched:
        patched.setattr(SharedInStore, "show", die)
        ranks = start(3, *given, "timeout_minutes=0.05")
        assert isinstance(ranks[2].exception(240), KeyboardInterrupt)
        for each in ranks[:2]:
            with refused(DlrmError, "rank 2 of 3", "has not been heard of for timeout_minutes=0.05"):
                each.result(240)
    assert any(name.startswith(".work/lines/") for name in names(s3, "made"))
    for each in start(2, *given):
        each.result(240)
    run(clicks / "whole", *given)
    assert objects(s3, "made") == content(clicks / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_what_cannot_work_is_refused_on_all_ranks_and_leaves_nothing(s3: Any, clicks: Path) -> None:
    given = of_way(clicks, "hash")
    ranks = [*start(2, *given, ranks=[0]), *start(2, *given, "split.val=0.2", ranks=[1])]
    for each in ranks:
        with refused(ConfigError, "split.val", "is 0.1 for rank 0, and 0.2 for rank 1"):
            each.result(240)
    (alone,) = start(2, *given, "timeout_minutes=0.02", ranks=[0])
    with refused(DlrmError, "rank 1 of 2", "has not been heard of for timeout_minutes=0.02"):
        alone.result(240)
    assert objects(s3, "made") == {}
    (late,) = start(2, *given, "timeout_minutes=0.02", ranks=[1])
    with refused(DlrmError, "rank 0 of 2", "has not been heard of for timeout_minutes=0.02"):
        late.result(240)
    assert objects(s3, "made") == {}


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_ranks_of_an_earlier_attempt_that_still_work_are_not_joined_by_fewer(s3: Any, clicks: Path) -> None:
    given = of_way(clicks, "hash")
    waiting = start(3, *given, "timeout_minutes=0.5", ranks=[0, 2])
    wait_until(lambda: {*names(s3, "made/.work/ranks")} >= {"0.state", "2.state"}, 120, "both")
    shared = SharedInStore(KeptFolder.of(URL), Path(), Mirror(KeptFolder.of(URL)), is_first=True)
    with refused(DlrmError, f"output={URL}", "is worked on by other ranks of dlrm-preprocess"):
        shared.open(2)
    for each in (*waiting, *start(3, *given, ranks=[1])):
        each.result(240)


class Pods:
    """Processes that are ``num_ranks`` pods of an Indexed Job, with a disk each below ``root``."""

    def __init__(self, root: Path, num_ranks: int, words: Sequence[str]) -> None:
        self._root, self._words = root, [*command("preprocess", *words), f"ranks={num_ranks}"]
        self.running = {rank: self.start(rank) for rank in range(num_ranks)}

    def start(self, rank: int) -> "subprocess.Popen[str]":
        disk = {"DLRM_STORE_FOLDER": str(self._root / f"disk-{rank}"), "JOB_COMPLETION_INDEX": str(rank)}
        with self.log(rank).open("w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **disk}
            return subprocess.Popen(self._words, env=environment, stdout=log, stderr=log, text=True)

    def kill(self, rank: int) -> None:
        """The pod is lost, with its disk."""
        self.running[rank].kill()
        self.running[rank].wait()
        shutil.rmtree(self._root / f"disk-{rank}", ignore_errors=True)

    def log(self, rank: int) -> Path:
        return self._root / f"pod-{rank}.log"


@pytest.mark.long
@pytest.mark.parametrize("shuffle", ["block", "full"])
def test_pods_that_are_killed_at_random_moments_with_their_disks_change_nothing(
    s3: Any, tmp_path: Path, shuffle: str
) -> None:
    """One by one, rank 0 too, then all, and others continue with another number."""
    (tmp_path / "log.tsv").write_bytes(make_clicks(60_000))
    given = [*WORDS, f"input.train={tmp_path}/log.tsv", f"shuffle={shuffle}", "timeout_minutes=5"]
    given += ["dense.target_columns=[cat_1,cat_2]", "threads=1"]
    succeed(command("preprocess", *given, f"output={tmp_path}/whole"), tmp_path)
    draw, seen = random.Random(shuffle), set[str]()

    def wait_for_names(count: int) -> None:
        deadline = time.monotonic() + 300
        while len(seen) < count and any(pod.poll() is None for pod in pods.running.values()):
            seen.update(name for name in names(s3, "made") if not name.startswith(".work/ranks/"))
            assert time.monotonic() < deadline, pods.log(0).read_text()[-3000:]

    pods = Pods(tmp_path, 3, [*given, f"output={URL}"])
    for rank in draw.sample([0, 1, 2], 3):
        wait_for_names(len(seen) + draw.randrange(3, 15))
        pods.kill(rank)
        pods.running[rank] = pods.start(rank)
    wait_for_names(len(seen) + draw.randrange(3, 15))
    for rank in pods.running:
        pods.kill(rank)
    assert [name for name in names(s3, "made") if is_record(name)]
    pods = Pods(tmp_path, 2, [*given, f"output={URL}"])
    codes = [pod.wait(400) for pod in pods.running.values()]
    assert codes == [0, 0], pods.log(0).read_text()[-3000:]
    assert objects(s3, "made") == content(tmp_path / "whole")
    assert not [*(tmp_path / "disk-1").rglob("part-*.parquet")]  # no rank needs all shards
    s3.put_object(Bucket="clicks", Key="made/.work/encode/0000000-0000000.train.parquet", Body=b"left")
    shutil.rmtree(tmp_path / "disk-0")
    pods = Pods(tmp_path, 2, [*given, f"output={URL}"])  # finished already
    assert [pod.wait(400) for pod in pods.running.values()] == [0, 0], pods.log(0).read_text()[-3000:]
    assert objects(s3, "made") == content(tmp_path / "whole")
