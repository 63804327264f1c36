"""The launcher adds nothing to what a rank says, and ends with its code."""

import signal
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dlrm_app.distributed import torchrun
from tests.commands import run


def test_a_rank_that_fails_has_the_last_word(tmp_path: Path) -> None:
    """The other rank waits, as ours do, and is ended without a word."""
    (tmp_path / "rank.py").write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n    time.sleep(60)\n"
        "print('error: no', file=sys.stderr); sys.exit(2)\n"
    )
    start = [sys.executable, "-m", "dlrm_app.distributed.torchrun", "--standalone", "--nproc-per-node=2"]
    done = run([*start, "rank.py"], tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: no\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ChildFailedError("rank.py", {3: ProcessFailure(0, 77, -9, "<N/A>")}),
            1,
            "rank 3 (pid 77) was ended by SIGKILL\n",
        ),
        (SignalException("", signal.SIGTERM), 143, ""),
    ],
)
def test_a_rank_or_a_launcher_that_was_ended_by_a_signal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    said: str,
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(torchrun, "torchrun", fail)
    assert torchrun.main() == code
    assert capsys.readouterr().err == said
