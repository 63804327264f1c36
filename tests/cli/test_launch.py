"""The commands as a user types them: installed scripts, run from another folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlrm_app.cli import launch
from dlrm_app.errors import ConfigError, Problem
from tests.commands import command, run

TRAIN = Path(sys.executable).with_name("dlrm-train")


@pytest.mark.slow
def test_silent_ranks_wait_until_the_first_has_reported(tmp_path: Path) -> None:
    """torchrun ends all ranks once one has ended: the message of the first would be lost."""
    words = command("train", "data.path=x", "trainer.epoch=3")
    second = subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "RANK": "1"}
    )
    try:
        first = run(words, tmp_path)
        assert "did you mean trainer.epochs?" in first.stderr
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=4)
    finally:
        second.terminate()
    assert second.communicate()[1] == ""


def test_a_rank_whose_settings_alone_are_wrong_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one does on a machine where the dataset is not."""
    monkeypatch.setattr(launch, "SILENT_SECONDS", 0)
    monkeypatch.setenv("RANK", "1")

    def refuse() -> None:
        raise ConfigError(Problem("x", "does not exist"))

    with pytest.raises(SystemExit):
        launch.run_or_explain(refuse)
    assert capsys.readouterr().err.startswith("error (rank 1): 1 problem")


def test_a_reader_that_leaves_the_help_early_causes_no_traceback(tmp_path: Path) -> None:
    line = f"{TRAIN} --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = run(["bash", "-c", line], tmp_path)
    assert done.stdout.startswith("dlrm-train")
    assert done.stderr == ""


def test_an_interrupt_during_imports_shows_no_traceback(tmp_path: Path) -> None:
    code = "import dlrm_app.cli; raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr == "interrupted\n"
