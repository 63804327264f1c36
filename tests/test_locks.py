"""Locks are held where the file system has them, and released."""

import errno
import fcntl
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlrm_app.errors import DlrmError
from dlrm_app.locks import held_lock
from tests.refusals import refused


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_the_work_goes_on_with_a_warning(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lustre without flock, NFS without a lock daemon, FUSE: the work goes on, with a warning."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with held_lock(tmp_path / "lock", "held"):
        pass
    assert "has no locks" in caplog.text
    assert not (tmp_path / "lock").exists()


def test_a_lock_that_is_released_in_time_is_taken(tmp_path: Path) -> None:
    with ExitStack() as other:
        other.enter_context(held_lock(tmp_path / "lock", "held"))
        with refused(DlrmError, "", "held"), held_lock(tmp_path / "lock", "held"):
            pass
        timer = threading.Timer(0.5, other.pop_all().close)
        timer.start()
        with held_lock(tmp_path / "lock", "held", wait_seconds=30):
            assert timer.finished.wait(5)
