"""More than one machine: the units of a run on the workers of a Dask cluster."""

import gzip
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import LocalCluster

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import DaskConfig, GenerateConfig
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.preprocess.units import dask_executor
from dlrm_app.synthetic import generate
from tests.preprocess.running import configure, content, run

OPTIONS = ("dataset=criteo_kaggle", "split.val=0.1", "split.test=0.1", "encoding=vocab", "layout.unit_mib=1")


@pytest.fixture
def address() -> Iterator[str]:
    """A scheduler on this machine; workers are up to the test."""
    with LocalCluster(n_workers=0, dashboard_address=None, host="127.0.0.1") as cluster:
        yield cluster.scheduler_address


def start_worker(address: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address]
    options = ["--no-nanny", "--no-dashboard", "--nthreads", "1"]
    return subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)


def write_clicks(path: Path, rows: int) -> Path:
    words = [f"output={path}", f"rows={rows}", "seed=0", "max_cardinality=1000", "threads=1"]
    generate(compose_config("generate", GenerateConfig, words))
    return path


def kill_half_way(worker: "subprocess.Popen[bytes]", landed: Path, num_units: int, seen: list[int]) -> None:
    """Kills the worker once a third of the units have landed, and notes how many that were."""
    while len(list(landed.glob("*.json"))) < num_units // 3:
        time.sleep(0.005)
    worker.kill()
    seen.append(len(list(landed.glob("*.json"))))


@pytest.mark.long
def test_a_worker_killed_half_way_changes_nothing_of_the_dataset(address: str, tmp_path: Path) -> None:
    clicks = write_clicks(tmp_path / "clicks.tsv", 150_000)
    num_units = -(-clicks.stat().st_size // (1 << 20))
    workers = [start_worker(address) for _ in range(2)]
    output, seen = tmp_path / "dask", []
    killer = threading.Thread(
        target=kill_half_way, args=(workers[0], output / ".work" / "encode", num_units, seen)
    )
    killer.start()
    try:
        run(output, *OPTIONS, f"input.train={clicks}", "executor=dask", f"dask.address={address}")
        killer.join(timeout=10)
        assert workers[0].wait(timeout=10) == -9
        assert workers[1].poll() is None
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert 0 < seen[0] < num_units
    run(tmp_path / "local", *OPTIONS, f"input.train={clicks}")
    assert content(output) == content(tmp_path / "local")


@pytest.mark.long
def test_the_scheduler_killed_half_way_leaves_a_run_that_goes_on_without_dask(tmp_path: Path) -> None:
    clicks = write_clicks(tmp_path / "clicks.tsv", 150_000)
    num_units = -(-clicks.stat().st_size // (1 << 20))
    place = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0"]
    scheduler = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--scheduler-file", str(place)], stderr=subprocess.DEVNULL
    )
    while not place.exists():
        time.sleep(0.05)
    address = json.loads(place.read_text())["address"]
    worker = start_worker(address)
    output, seen = tmp_path / "out", []
    killer = threading.Thread(
        target=kill_half_way, args=(scheduler, output / ".work" / "encode", num_units, seen)
    )
    killer.start()
    try:
        with pytest.raises(
            DlrmError, match="the Dask scheduler has ended: start one, or leave executor=dask out"
        ):
            run(output, *OPTIONS, f"input.train={clicks}", "executor=dask", f"dask.address={address}")
        killer.join(timeout=10)
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()
    assert 0 < seen[0] < num_units
    run(output, *OPTIONS, f"input.train={clicks}")
    run(tmp_path / "local", *OPTIONS, f"input.train={clicks}")
    assert content(output) == content(tmp_path / "local")


def test_an_error_on_a_worker_reaches_the_user_whole(tmp_path: Path) -> None:
    zipped = gzip.compress(write_clicks(tmp_path / "clicks.tsv", 3000).read_bytes())
    (tmp_path / "cut.tsv.gz").write_bytes(zipped[:-1000])
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        options = ("executor=dask", f"dask.address={cluster.scheduler_address}")
        with pytest.raises(DataError, match=r"cut.tsv.gz is cut short, or other bytes follow"):
            run(tmp_path / "out", *OPTIONS, f"input.train={tmp_path}/cut.tsv.gz", *options)


def test_a_worker_with_another_version_of_the_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = write_clicks(tmp_path / "clicks.tsv", 10)
    checksums = iter(["of the one that asks", "of the worker"])
    monkeypatch.setattr(dask_executor, "own_code", lambda: next(checksums))
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        options = ("executor=dask", f"dask.address={cluster.scheduler_address}")
        with pytest.raises(DlrmError, match=r"the worker at \S+ has another dlrm-app"):
            run(tmp_path / "out", *OPTIONS, f"input.train={clicks}", *options)


def test_errors_survive_the_way_from_another_process() -> None:
    error = ConfigError(["one thing", "another"])
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.problems, str(copy)) == (error.problems, str(error))


def test_a_cluster_without_workers_is_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_executor, "_PATIENCE", 1)
    clicks = write_clicks(tmp_path / "clicks.tsv", 10)
    with pytest.raises(DlrmError, match=f"no worker has joined the scheduler at {address}"):
        run(tmp_path / "out", *OPTIONS, f"input.train={clicks}", "executor=dask", f"dask.address={address}")
    assert not (tmp_path / "out").exists()


def test_an_address_where_nothing_answers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "_ANSWER_PATIENCE", 1)
    clicks = write_clicks(tmp_path / "clicks.tsv", 10)
    options = ("executor=dask", "dask.address=tcp://127.0.0.1:9")
    with pytest.raises(DlrmError, match=r"no Dask scheduler answers at dask.address=tcp://127.0.0.1:9"):
        run(tmp_path / "out", *OPTIONS, f"input.train={clicks}", *options)


def test_without_dask_the_command_to_install_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrm_app.config.datasets.find_spec", lambda name: None)
    (problem,) = DaskConfig("tcp://a").executor_rules("dask")
    assert "the package distributed: pip install " in str(problem)
    assert DaskConfig().executor_rules("local") == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["executor=dask"], "executor=dask needs dask.address"),
        (["executor=dask", "dask.slurm.workers=2"], "dask.slurm.workers is gone"),
        (["dask.address=tcp://a"], "dask.address is for executor=dask"),
        (["executor=spark"], "executor must be one of local, dask"),
        (["executor=dask", "dask.address=a", "threads=2"], "threads is for executor=local"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure("input.train=x", "output=y", *overrides)
