"""Several processes at one port: one take-over for all, metrics of all, none that is lost for good, all ended together."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dlrm_app.inference.serve.workers import with_workers
from tests.commands import children_of, is_alive, wait_until
from tests.inference.serve.running import Client, move, running
from tests.inference.serve.test_server import Load, json_rows
from tests.inference.shop import NUM_TEST


def page_of(number: int) -> bytes:
    registry = CollectorRegistry()
    Counter("asked", "Requests", ["status"], registry=registry).labels("200").inc(number)
    Histogram("seconds", "Times", buckets=(1, 2), registry=registry).observe(number)
    Gauge("waiting", "Rows", registry=registry).set(number)
    return generate_latest(registry)


def samples(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = [*text_string_to_metric_families(page.decode())]
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_page_of_all_has_the_samples_of_each() -> None:
    """With a label for the worker, under one heading for each metric; a worker that gives no page is left out."""
    pages = {number: page_of(number) for number in (2, 0)}
    expected = {
        (name, labels | {("worker", str(number))}): value
        for number, page in pages.items()
        for (name, labels), value in samples(page).items()
    }
    page = with_workers({**pages, 1: b""})
    assert samples(page) == expected
    assert page.count(b"# TYPE asked_total counter") == 1


@pytest.fixture
def served(tmp_path: Path, shop: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """(two workers, their port, the link that they follow)."""
    link = tmp_path / "published"
    move(link, shop)
    with running(f"model={link}/export", "workers=2", "watch.seconds=null") as (process, port):
        wait_until(lambda: len(values(port, "dlrm_export_changes_total")) == 2, 120, "both workers")
        yield process, port, link


def values(port: int, name: str) -> dict[str, float]:
    """Worker → its value of a metric."""
    page = Client(port).ask("GET", "/metrics")[1]
    return {
        found[1]: float(found[2]) for found in re.finditer(rf'^{name}{{worker="(\d)"}} (\S+)$', page, re.M)
    }


@pytest.mark.slow
def test_a_take_over_reaches_all_and_no_request_is_lost(served: Any, other_shop: Path) -> None:
    process, port, link = served
    rows = json_rows()
    known = Client(port).score(rows)[1]["scores"]
    load = Load(port, known)
    wait_until(lambda: load.outcomes["right"] > 50, 120, "answers")
    move(link, other_shop)
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: values(port, "dlrm_export_changes_total") == {"0": 1, "1": 1}, 120, "a change of both")
    for _ in range(10):
        client = Client(port)
        assert client.score(rows)[1]["scores"] != known
        assert client.model.startswith(f"{other_shop.name}/")
    workers = children_of(process.pid)
    load.is_ending.set()
    process.terminate()
    assert process.wait(120) == 0
    load.join()
    assert load.outcomes["lost"] == 0, load.outcomes
    assert not any(map(is_alive, workers))


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(served: Any) -> None:
    """The other one answers meanwhile; its metrics are left out."""
    process, port, _ = served
    first, second = children_of(process.pid)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first), 60, "its end")
    status, answer = Client(port).score(json_rows())
    assert (status, len(answer["scores"])) == (200, NUM_TEST)
    wait_until(lambda: len(values(port, "dlrm_export_changes_total")) == 2, 120, "another worker")
    assert second in children_of(process.pid)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130


@pytest.mark.slow
def test_workers_end_with_their_first_process(served: Any) -> None:
    """However it ends."""
    process = served[0]
    workers = children_of(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, workers)), 120, "their end")


@pytest.mark.slow
def test_workers_that_cannot_begin_end_the_command(tmp_path: Path, shop: Path) -> None:
    """With the exit code and the reason of one process."""
    shutil.copytree(shop / "export", tmp_path / "export")
    file = next(tmp_path.glob("export/model.*"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    words = [sys.executable, "-m", "dlrm_app.cli", "serve", f"model={tmp_path}/export", "port=0", "workers=2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "is damaged or was changed" in done.stderr
    assert "could not begin (exit code 1)" in done.stderr


@pytest.mark.slow
def test_workers_that_cannot_begin_again_end_the_command(tmp_path: Path, served: Any) -> None:
    """As long as one serves, it goes on."""
    process, port, link = served
    move(link, tmp_path / "nowhere")
    first, second = children_of(process.pid)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first), 60, "its end")
    for _ in range(20):
        assert Client(port).score(json_rows())[0] == 200
    assert process.poll() is None
    os.kill(second, signal.SIGKILL)
    assert process.wait(120) == 1


WITH_ANOTHER_CHILD = """
import os, subprocess, time
from dlrm_app.inference.serve.workers import run_workers
subprocess.Popen(["true"])
run_workers(2, lambda worker: (worker.say_begun(), os.write(1, b"begun\\n"), time.sleep(600)))
"""


def test_other_children_of_the_first_process_may_end() -> None:
    """It has some if it is the first one of a container, or was a shell."""
    with subprocess.Popen(
        [sys.executable, "-c", WITH_ANOTHER_CHILD], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
        wait_until(lambda: len(children_of(process.pid)) == 2, 120, "the other child's end")
        process.terminate()
        assert process.wait(120) == 0
