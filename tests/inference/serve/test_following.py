"""A server follows the link of its export: another one takes over between two batches, or the old one goes on."""

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.checksums import checksum
from dlrm_app.inference.record import RECORD, read_delta
from dlrm_app.inference.serve.following import Follower
from dlrm_app.inference.serve.request import ScoringRequest
from dlrm_app.inference.serve.scoring import open_served
from tests.commands import wait_until
from tests.inference.serve.running import Client, health, move, running
from tests.inference.serve.test_server import json_rows


@pytest.fixture
def link(tmp_path: Path, shop: Path) -> Path:
    path = tmp_path / "published"
    move(path, shop)
    return path


@pytest.fixture
def follower(link: Path) -> Iterator[Follower]:
    made = Follower(link / "export", open_served(link / "export"))
    yield made
    made.close()


def test_a_moved_link_is_followed(follower: Follower, link: Path, shop: Path, other_shop: Path) -> None:
    """Once, with the scores of the export that it leads to."""
    assert not follower.look()
    move(link, other_shop)
    assert follower.look()
    assert not follower.look()
    serving = follower.serving
    assert (serving.folder, serving.changes, serving.failures) == (other_shop / "export", 1, 0)
    assert serving.name == f"{other_shop.name}/export {serving.export.identity}"
    rows = [ScoringRequest(json_rows()[:20])]
    assert serving.export.score(rows) == open_served(other_shop / "export").score(rows)
    assert serving.export.score(rows) != open_served(shop / "export").score(rows)


def test_a_delta_of_the_served_export_takes_over(follower: Follower, link: Path, other_shop: Path) -> None:
    """It gives the scores of the whole export; its temporary folder is deleted when another one takes over."""
    rows, whole = [ScoringRequest(json_rows()[:20])], open_served(other_shop / "export")
    link.unlink()
    link.mkdir()
    (link / "export").symlink_to(other_shop / "delta")
    assert follower.look()
    assert not follower.look()
    serving = follower.serving
    assert read_delta(other_shop / "delta").result.startswith(f"sha256:{serving.export.identity}")
    assert serving.export.score(rows) == whole.score(rows)
    rebuilt = serving.export.model.folder
    assert rebuilt.is_dir()
    follower.close()
    assert not rebuilt.exists()


def damage(export: Path) -> None:
    file = next(path for path in sorted(export.rglob("*")) if path.is_file() and path.name != RECORD)
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def change_encoding(export: Path, change: Callable[[Any], None]) -> None:
    """Changes the description of the encoding's dataset, with checksums that fit."""
    manifest = export / "encoding" / "manifest.json"
    values = json.loads(manifest.read_text())
    change(values)
    manifest.write_text(json.dumps(values))
    record = json.loads((export / RECORD).read_text())
    record["files"]["encoding/manifest.json"] = {
        "bytes": manifest.stat().st_size,
        "checksum": checksum(manifest),
    }
    (export / RECORD).write_text(json.dumps(record))


def of_other_columns(export: Path) -> None:
    def change(values: Any) -> None:
        columns = values["config"]["dataset"]["columns"]
        columns[3] = {"name": "visit", "role": "ignore"}
        next(column for column in columns if column["name"] == "price")["kind"] = "integer"

    change_encoding(export, change)


def of_another_label(export: Path) -> None:
    def change(values: Any) -> None:
        columns = values["config"]["dataset"]["columns"]
        next(column for column in columns if column["name"] == "clicked")["name"] = "ordered"
        values["label"] = "ordered"

    change_encoding(export, change)


def of_other_null_words(export: Path) -> None:
    change_encoding(export, lambda values: values["config"]["dataset"].update(null_values=["0"]))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damage, "checksum"),
        (lambda export: (export / RECORD).unlink(), "holds no export"),
        (of_other_columns, "reads other columns, or gives other labels, than the export that is served"),
        (of_another_label, "than the export that is served (labels)"),
        (of_other_null_words, "than the export that is served (null words)"),
        (shutil.rmtree, "holds no export"),
    ],
)
def test_what_cannot_be_served_leaves_the_old_one(
    follower: Follower, link: Path, tmp_path: Path, other_shop: Path, harm: Any, reason: str
) -> None:
    """It is counted once, and looked at again when its files change, as when a copy is finished."""
    copy = tmp_path / "day"
    shutil.copytree(other_shop / "export", copy / "export")
    harm(copy / "export")
    before = follower.serving.export
    move(link, copy)
    for _ in range(2):
        assert not follower.look()
    serving = follower.serving
    assert serving.export is before
    assert (serving.changes, serving.failures) == (0, 1)
    assert serving.failure is not None
    assert reason in serving.failure
    shutil.rmtree(copy / "export", ignore_errors=True)
    shutil.copytree(other_shop / "export", copy / "export")
    assert follower.look()
    assert (follower.serving.changes, follower.serving.failures, follower.serving.failure) == (1, 1, None)


def test_an_export_larger_than_the_memory_is_not_opened(
    follower: Follower, link: Path, other_shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlrm_app.inference.serve.following.available_memory", lambda: 1000)
    move(link, other_shop)
    assert not follower.look()
    assert "of memory beside the one that is served, 1 kB are free" in str(follower.serving.failure)


def test_the_served_export_may_be_deleted(
    follower: Follower, link: Path, tmp_path: Path, other_shop: Path
) -> None:
    """Its files are in memory; without it the old one goes on."""
    shutil.copytree(other_shop / "export", tmp_path / "day" / "export")
    move(link, tmp_path / "day")
    assert follower.look()
    rows = [ScoringRequest(json_rows()[:20])]
    scores = follower.serving.export.score(rows)
    shutil.rmtree(tmp_path / "day")
    assert not follower.look()
    assert follower.serving.export.score(rows) == scores


def loaded_packages() -> int:
    """The number of compiled packages in this process's memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if ".wrapper.so" in line})


@pytest.mark.long
def test_compiled_packages_that_were_replaced_are_unloaded(tmp_path: Path, mixed_export: Path) -> None:
    """However many changes there are; a few libraries stay, because others use their symbols."""
    days = [tmp_path / "one", tmp_path / "other"]
    for number, day in enumerate(days):
        shutil.copytree(mixed_export, day / "export")
        record = json.loads((day / "export" / RECORD).read_text())
        (day / "export" / RECORD).write_text(json.dumps({**record, "step": number}))
    link, before = tmp_path / "published", loaded_packages()

    def in_a_thread(work: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(work).result()

    move(link, days[0])
    follower = Follower(link / "export", in_a_thread(lambda: open_served(link / "export")))
    for change in range(1, 9):
        move(link, days[change % 2])
        assert in_a_thread(follower.look)
        thread = follower.serving.export.thread
        (answer,) = thread.submit(lambda: follower.serving.export.score([ScoringRequest([{}])])).result()
        assert isinstance(answer, dict)
        assert not in_a_thread(follower.look)
    assert loaded_packages() - before <= 3


@pytest.mark.long
def test_no_request_fails_while_exports_take_turns(tmp_path: Path, shop: Path, other_shop: Path) -> None:
    """Each answer is one export's, to the bit, and names it; SIGHUP makes the server look at once."""
    link, rows = tmp_path / "published", json_rows()[:4]
    move(link, shop)
    known = {}
    for folder in (shop, other_shop):
        served = open_served(folder / "export")
        (answer,) = served.score([ScoringRequest(rows)])
        assert isinstance(answer, dict)
        known[f"{folder.name}/export {served.identity}"] = answer["click"]
    outcomes: Counter[str] = Counter()
    with running(f"model={link}/export", "watch.seconds=null") as (process, port):
        is_over = threading.Event()

        def ask() -> None:
            client = Client(port)
            while not is_over.is_set():
                status, answer = client.score(rows)
                outcomes[
                    client.model if status == 200 and answer["scores"] == known[client.model] else "wrong"
                ] += 1

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            for change in range(1, 5):
                move(link, (shop, other_shop)[change % 2])
                os.kill(process.pid, signal.SIGHUP)
                wait_until(lambda change=change: health(port)["changes"] == change, 60, "a change")  # type: ignore[misc]
                time.sleep(0.1)
        finally:
            is_over.set()
            for client in clients:
                client.join()
        metrics = Client(port).ask("GET", "/metrics")[1]
        process.terminate()
        assert process.wait(30) == 0
    assert set(outcomes) == set(known)
    assert "dlrm_export_changes_total 4.0" in metrics
    assert "dlrm_export_failures_total 0.0" in metrics
