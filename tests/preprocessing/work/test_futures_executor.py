"""Units of work on any executor of concurrent.futures, from Python."""

import gzip
import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dlrm_app as dlrm
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.preprocessing.work import futures_executor
from dlrm_app.preprocessing.work.work_folder import WORK
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import content
from tests.refusals import refused

SETTINGS = {"encoding": "vocab", "encoding.min_count": 2, "split.val": 0.1, "layout.unit_mib": 1}
SETTINGS |= {"dense.target_columns": ["cat_0"], "shuffle": "full", "layout.shuffled_shard_rows": 2000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three units, and the dataset ``whole`` that this process's threads make of it."""
    folder = tmp_path_factory.mktemp("futures")
    (folder / "log.tsv").write_bytes(make_clicks(12_000))
    preprocess(folder, "whole")
    return folder


def preprocess(folder: Path, output: str, **more: Any) -> None:
    dlrm.preprocess(SETTINGS, {"input.train": folder / "log.tsv"}, output=folder / output, **more)


def of_processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


class DaskPool(Executor):
    """Dask's own executor, which ends its cluster too."""

    def __init__(self) -> None:
        self._cluster = LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        )
        self._client = Client(self._cluster)
        self._pool = self._client.get_executor()

    def submit(self, *arguments: Any, **keywords: Any) -> Future:
        return self._pool.submit(*arguments, **keywords)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._client.close()
        self._cluster.close()


POOLS = {
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": of_processes,
    "dask": DaskPool,
}


@pytest.mark.parametrize(
    "kind",
    [
        "threads",
        pytest.param("processes", marks=pytest.mark.long),
        pytest.param("dask", marks=pytest.mark.slow),
    ],
)
def test_every_executor_makes_the_same_bytes(folder: Path, kind: str) -> None:
    with POOLS[kind]() as pool:
        preprocess(folder, kind, executor=pool)
    assert content(folder / kind) == content(folder / "whole")


@pytest.mark.long
def test_a_process_that_is_killed_is_explained_and_the_run_continues(folder: Path, tmp_path: Path) -> None:
    with (
        of_processes() as pool,
        refused(
            DlrmError,
            "executor=ProcessPoolExecutor",
            "has ended, or has lost a process, as where memory runs out",
        ),
    ):
        pool.submit(os._exit, 1)
        preprocess(folder, "killed", executor=pool)
    assert not [*(folder / "killed" / WORK).glob("*.task")]
    preprocess(folder, "killed")
    assert content(folder / "killed") == content(folder / "whole")


def test_an_error_of_a_unit_is_raised_as_it_is(tmp_path: Path) -> None:
    zipped = gzip.compress(make_clicks(3000))
    (tmp_path / "cut.gz").write_bytes(zipped[:-1000])
    with (
        ThreadPoolExecutor(2) as pool,
        refused(DataError, ".../cut.gz", "is cut short, or other bytes follow..."),
    ):
        dlrm.preprocess(
            SETTINGS, {"input.train": tmp_path / "cut.gz"}, output=tmp_path / "out", executor=pool
        )


def test_processes_with_another_version_of_the_code_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checksums() -> Iterator[str]:
        yield "of the caller"
        while True:
            yield "of the process"

    found = checksums()
    monkeypatch.setattr(futures_executor, "own_code", lambda: next(found))
    with (
        ThreadPoolExecutor(1) as pool,
        refused(DlrmError, "process ...", "has another dlrm-app than the caller"),
    ):
        preprocess(folder, "other", executor=pool)


def test_threads_and_ranks_are_not_for_an_executor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with ThreadPoolExecutor(1) as pool:
        with refused(ConfigError, "threads", "is for executor=local"):
            preprocess(folder, "refused", executor=pool, threads=2)
        with refused(
            ConfigError,
            "executor=ThreadPoolExecutor",
            "divides the work, and so do the 2 ranks that were started",
        ):
            preprocess(folder, "refused", executor=pool, ranks=2)


def test_a_call_from_python_works_by_itself_under_a_launcher(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one rank of a training makes the dataset first."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    preprocess(folder, "alone", executor="local")
    assert content(folder / "alone") == content(folder / "whole")
