"""The local sides of stores stay within their limit; what is used, or not sent, stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlrm_app.errors import ConfigError
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.local import beside
from dlrm_app.stores.mirror import kept_folder
from dlrm_app.stores.names import local_place
from dlrm_app.stores.room import HELD, make_room, most_bytes
from tests.refusals import refused
from tests.stores.memory_store import MemoryFolder

BYTES = 1000


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[KeptFolder]:
    """Four folders of 1,000 bytes, used one after another, by processes that have ended."""
    monkeypatch.setenv("DLRM_STORE_FOLDER", str(tmp_path / "cache"))
    made = []
    for number in range(4):
        url = f"s3://bucket/{number}"
        kept = KeptFolder(MemoryFolder(url, {"file": bytes(BYTES)}), local_place(url))
        kept.fetch()
        os.utime(beside(kept.folder, "used"), (number, number))
        made.append(kept)
    for lock in HELD.values():
        lock.close()
    HELD.clear()
    return made


def limit(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setenv("DLRM_STORE_GIB", str(num_bytes / 2**30))


def there(folders: list[KeptFolder]) -> list[bool]:
    return [(kept.folder / "file").is_file() for kept in folders]


def test_without_a_limit_all_stay(folders: list[KeptFolder]) -> None:
    make_room()
    assert there(folders) == [True] * 4


def test_those_used_longest_ago_go(folders: list[KeptFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 2 * BYTES)
    make_room()
    assert there(folders) == [False, False, True, True]
    folders[0].fetch()
    assert there(folders) == [True, False, False, True]


def test_what_is_used_or_not_sent_stays(
    folders: list[KeptFolder], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folders[1].folder / "not sent").write_bytes(b"")
    limit(monkeypatch, BYTES)
    with kept_folder(folders[0]), caplog.at_level("INFO", "dlrm_app"):
        make_room()
        assert there(folders) == [True, True, False, False]
    assert "deleted the local files of s3://bucket/2 (1 kB)" in caplog.text
    assert "what is used, or not sent yet, takes 2 kB" in caplog.text


@pytest.mark.slow
def test_what_another_process_uses_stays_until_that_ends(
    folders: list[KeptFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    use = f"import sys; from dlrm_app.stores.fetch import hold, local_place; hold(local_place({folders[0].stored.url!r}))"
    code = f"{use}; print('used', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"used\n"
    os.utime(beside(folders[0].folder, "used"), (0, 0))  # longest ago
    limit(monkeypatch, BYTES)
    make_room()
    assert there(folders) == [True, False, False, False]
    process.kill()
    process.wait()
    limit(monkeypatch, BYTES - 1)
    make_room()
    assert there(folders) == [False] * 4


@pytest.mark.parametrize("given", ["0", "-1", "ten", "nan"])
def test_other_limits_are_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLRM_STORE_GIB", given)
    with refused(ConfigError, "DLRM_STORE_GIB", "must be a number of GiB, above 0", value=given):
        most_bytes()
