"""Two machines do not work on one folder; one that was killed is followed by another."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.errors import DataError, DlrmError
from dlrm_app.stores import lease
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.lease import Lease, held_lease
from dlrm_app.stores.mirror import Mirror
from dlrm_app.stores.names import local_place
from dlrm_app.stores.objects import LEASE
from tests.refusals import refused
from tests.stores.memory_store import MemoryFolder

URL = "s3://bucket/work"


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLRM_STORE_FOLDER", str(tmp_path / "cache"))
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.05)
    monkeypatch.setattr(lease, "KEPT_SECONDS", 0.4)
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.02)


@pytest.fixture
def store() -> MemoryFolder:
    return MemoryFolder(URL)


def on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From here on, this process is one with another folder of local sides."""
    monkeypatch.setenv("DLRM_STORE_FOLDER", str(tmp_path / "other"))


def test_a_second_machine_is_refused_while_the_first_one_works(
    store: MemoryFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with held_lease(store) as check:
        monkeypatch.setattr(
            "dlrm_app.stores.lease.this_process",
            lambda mine=lease.this_process: replace(mine(), place=threading.current_thread().name),
        )
        with refused(DlrmError, f"output={URL}", "is worked on by process ..."):
            Lease(store).acquire()
        check()
    assert store.leases == {}
    Lease(store).acquire()


def test_a_killed_machine_is_followed_after_its_time_and_the_same_one_at_once(
    store: MemoryFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Lease(store).acquire()
    began = time.monotonic()
    Lease(store).acquire()
    assert time.monotonic() - began < 0.4
    on_another_machine(monkeypatch, tmp_path)
    began = time.monotonic()
    with caplog.at_level("INFO", "dlrm_app"):
        Lease(store).acquire()
    assert time.monotonic() - began >= 0.4
    assert "was worked on by process" in caplog.text


def test_a_command_that_has_lost_its_lease_changes_nothing_any_more(
    store: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptFolder(store, local_place(URL))
    first = Lease(store)
    first.acquire()
    store.leases[LEASE] = b"another"
    first.renew()
    kept.folder.mkdir(parents=True)
    (kept.folder / "a").write_bytes(b"1")
    with refused(DlrmError, f"output={URL}", "has been taken over by another command, ..."):
        Mirror(kept, first.check).send(is_last=True)
    assert store.objects == {}
    first.release()
    assert store.leases == {LEASE: b"another"}


def test_a_store_that_cannot_be_written_is_refused_before_any_work(
    store: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryFolder, name: str, data: bytes) -> None:
        raise DataError("must not be written: there is no permission")

    monkeypatch.setattr(MemoryFolder, "create", refuse)
    with (
        pytest.raises(DataError, match="there is no permission"),
        KeptFolder(store, local_place(URL)).fetched_for_work(),
    ):
        pytest.fail("it began")
