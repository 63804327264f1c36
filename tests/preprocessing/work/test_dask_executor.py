"""More than one machine: the units of a run on the workers of a Dask cluster."""

import gzip
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import LocalCluster

from dlrm_app.config.datasets import DaskConfig
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem
from dlrm_app.logs.sources.folders import NoFilesError
from dlrm_app.logs.sources.source import DamagedFileError
from dlrm_app.preprocessing.work import dask_executor, futures_executor
from dlrm_app.tools.synthetic import generate
from tests.composed import compose_config
from tests.make_log import make_log
from tests.preprocessing.running import configure, content, run
from tests.refusals import refused

OPTIONS = ("dataset=criteo_kaggle", "split.val=0.1", "split.test=0.1", "encoding=vocab", "layout.unit_mib=1")


@pytest.fixture
def address() -> Iterator[str]:
    """A scheduler on this machine; workers are up to the test."""
    with LocalCluster(n_workers=0, dashboard_address=None, host="127.0.0.1") as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def one_worker() -> Iterator[tuple[str, ...]]:
    """Options of a cluster with a worker in this process."""
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        yield on(cluster.scheduler_address)


def on(address: str) -> tuple[str, ...]:
    return "executor=dask", f"dask.address={address}"


@contextmanager
def started(module: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", f"distributed.cli.{module}", "--no-dashboard", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def started_worker(address: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    return started("dask_worker", address, "--no-nanny", "--nthreads", "1")


def write_clicks(path: Path, rows: int) -> Path:
    words = [f"output={path}", f"rows={rows}", "seed=0", "max_cardinality=1000", "threads=1"]
    generate(compose_config("generate", GenerateConfig, words))
    return path


@contextmanager
def killed_half_way(process: "subprocess.Popen[bytes]", output: Path, clicks: Path) -> Iterator[None]:
    """Kills the process once a third of the units have landed."""
    num_units, seen = -(-clicks.stat().st_size // (1 << 20)), []

    def landed() -> int:
        return len(list((output / ".work" / "encode").glob("*.json")))

    def kill() -> None:
        while landed() < num_units // 3:
            time.sleep(0.005)
        process.kill()
        seen.append(landed())

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    yield
    killer.join(timeout=10)
    assert process.wait(timeout=10) == -9
    assert 0 < seen[0] < num_units


@pytest.mark.long
def test_a_worker_killed_half_way_changes_nothing_of_the_dataset(address: str, tmp_path: Path) -> None:
    clicks, output = write_clicks(tmp_path / "clicks.tsv", 150_000), tmp_path / "dask"
    with started_worker(address) as first, started_worker(address) as second:
        with killed_half_way(first, output, clicks):
            run(output, *OPTIONS, f"input.train={clicks}", *on(address))
        assert second.poll() is None
    run(tmp_path / "local", *OPTIONS, f"input.train={clicks}")
    assert content(output) == content(tmp_path / "local")


@pytest.mark.long
def test_workers_split_by_time_as_threads_do(address: str, tmp_path: Path) -> None:
    columns = ["{name: clicked, role: label}", "{name: age, role: dense, kind: float}"]
    columns += ["{name: shop, role: sparse, kind: integer}", "{name: at, role: time, kind: seconds}"]
    random = np.random.default_rng(0)
    rows = {"clicked": random.integers(0, 2, 100_000), "age": random.normal(size=100_000)}
    rows |= {"shop": random.integers(0, 50, 100_000), "at": random.integers(1 << 30, 1 << 31, 100_000)}
    log = [*make_log(tmp_path, columns, rows), "split.by=at", "split.val=0.1", "encoding.num_embeddings=100"]
    with started_worker(address), started_worker(address):
        run(tmp_path / "dask", *log, "layout.unit_mib=1", *on(address))
    run(tmp_path / "local", *log, "layout.unit_mib=1")
    assert content(tmp_path / "dask") == content(tmp_path / "local")


@pytest.mark.long
def test_a_run_continues_without_a_killed_scheduler(tmp_path: Path) -> None:
    clicks, output = write_clicks(tmp_path / "clicks.tsv", 150_000), tmp_path / "out"
    place = tmp_path / "scheduler.json"
    options = ["--port", "0", "--host", "127.0.0.1", "--scheduler-file", str(place)]
    with started("dask_scheduler", *options) as scheduler:
        while not place.exists():
            time.sleep(0.05)
        address = json.loads(place.read_text())["address"]
        with (
            started_worker(address),
            killed_half_way(scheduler, output, clicks),
            refused(DlrmError, "the Dask scheduler", "has ended", "start one, or leave executor=dask out..."),
        ):
            run(output, *OPTIONS, f"input.train={clicks}", *on(address))
    run(output, *OPTIONS, f"input.train={clicks}")
    run(tmp_path / "local", *OPTIONS, f"input.train={clicks}")
    assert content(output) == content(tmp_path / "local")


def test_an_error_on_a_worker_reaches_the_user_whole(one_worker: tuple[str, ...], tmp_path: Path) -> None:
    zipped = gzip.compress(write_clicks(tmp_path / "clicks.tsv", 3000).read_bytes())
    (tmp_path / "cut.tsv.gz").write_bytes(zipped[:-1000])
    with refused(DataError, ".../cut.tsv.gz", "is cut short, or other bytes follow its gzip data"):
        run(tmp_path / "out", *OPTIONS, f"input.train={tmp_path}/cut.tsv.gz", *one_worker)


def test_a_worker_with_another_version_of_the_code_is_refused(
    one_worker: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums = iter(["of the one that asks", "of the worker"])
    monkeypatch.setattr(futures_executor, "own_code", lambda: next(checksums))
    clicks = write_clicks(tmp_path / "clicks.tsv", 10)
    with refused(DlrmError, "process ...", "has another dlrm-app than the caller"):
        run(tmp_path / "out", *OPTIONS, f"input.train={clicks}", *one_worker)


def test_errors_survive_the_way_from_another_process() -> None:
    """With their records."""
    problems = [Problem("a.key", "must be even", "add one", 3), Problem("b.key", "is unknown")]
    for kind in (ConfigError, DataError, DlrmError, NoFilesError):
        error = kind(*problems)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.problems, str(copy)) == (kind, problems, str(error))
    damaged = pickle.loads(pickle.dumps(DamagedFileError(problems[0], 7)))
    assert (damaged.problems, damaged.source) == (problems[:1], 7)


def test_a_missing_scheduler_or_worker_is_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_executor, "PATIENCE_SECONDS", 1)
    monkeypatch.setattr(dask_executor, "ANSWER_SECONDS", 1)
    given = f"input.train={write_clicks(tmp_path / 'clicks.tsv', 10)}"
    with refused(DlrmError, f"the scheduler at {address}", "has got no worker for 1 s"):
        run(tmp_path / "out", *OPTIONS, given, *on(address))
    with refused(
        DlrmError, "dask.address=tcp://127.0.0.1:9", "has no Dask scheduler that answers within 1 s"
    ):
        run(tmp_path / "out", *OPTIONS, given, *on("tcp://127.0.0.1:9"))
    assert not (tmp_path / "out").exists()


def test_without_dask_the_command_to_install_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrm_app.config.datasets.find_spec", lambda name: None)
    (problem,) = DaskConfig("tcp://a").executor_rules("dask")
    assert "the package distributed: pip install " in str(problem)
    assert list(DaskConfig().executor_rules("local")) == []


@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (["executor=dask"], "executor=dask", "needs dask.address"),
        (["dask.address=tcp://a"], "dask.address", "is for executor=dask"),
        (["executor=spark"], "executor", "must be one of local, dask"),
        (["executor=dask", "dask.address=a", "threads=2"], "threads", "is for executor=local"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], key: str, rule: str) -> None:
    with refused(ConfigError, key, rule):
        configure("input.train=x", "output=y", *overrides)
