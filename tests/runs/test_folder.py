"""Runs that name no folder get one each."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.folder import RunFolder, open_run_folder


def test_runs_of_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _format: "20260102-030405")
    with start_runtime(num_threads=1) as runtime, ExitStack() as stack:
        for _ in range(3):
            folder = stack.enter_context(open_run_folder(None, "none", runtime))
            (folder.path / "config.yaml").write_text("")
    names = ["20260102-030405", "20260102-030405-2", "20260102-030405-3"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names


def test_a_refused_run_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        start_runtime(num_threads=1) as runtime,
        pytest.raises(ValueError, match="no"),
        open_run_folder(None, "none", runtime),
    ):
        raise ValueError("no")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[3]", "7"])
def test_damaged_curves_do_not_end_the_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "curves.json").write_text(text)
    with start_runtime(num_threads=1) as runtime:
        RunFolder(tmp_path, runtime).write_curves(Evaluation("val", 0, 5, {"auc": 0.5}), {})
    assert json.loads((tmp_path / "curves.json").read_text()) == {"val": {"epoch": 0, "step": 5}}
