"""Which checkpoint of a run is evaluated, and which cannot be."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, DlrmError
from dlrm_app.runs.checkpoint.format import checkpoint_name
from dlrm_app.runs.checkpoint.load_trained import open_trained
from dlrm_app.runs.checkpoint.marker import MARKER
from tests.runs.checkpoint.test_marker import old_marker

RUNTIME = Runtime(0, 0, 1, 1, "cpu", 1)


def write_marker(run: Path, step: int, auc: float | None, **others: Any) -> Path:
    """A complete checkpoint without any tensors; ``auc``: of the evaluation before it was saved."""
    folder = run / "checkpoints" / checkpoint_name(step)
    folder.mkdir(parents=True)
    scores = [("test", step, 0.99), ("val", 0, 0.98), *([] if auc is None else [("val", step, auc)])]
    evals = [{"split": split, "epoch": 0, "step": at, "auc": score} for split, at, score in scores]
    marker = {**old_marker(), "progress": {"step": step, "evals": evals}, "files": {}, **others}
    if "columns" not in others:
        del marker["columns"]
    (folder / MARKER).write_text(json.dumps(marker))
    return folder


def test_the_newest_or_the_best_on_val_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrm_app.runs.checkpoint.trained_model.read_saved_config", lambda *_: TrainConfig())
    monkeypatch.setattr("dlrm_app.runs.checkpoint.trained_model.resolve_tables", lambda *_: [])
    for step, auc in ((10, 0.7), (20, 0.75), (30, math.nan), (40, 0.75), (50, 0.72), (60, None)):
        write_marker(tmp_path, step, auc, columns={"sparse": []}, config={})
    names = {which: open_trained(tmp_path, RUNTIME, which).folder.name for which in ("newest", "best")}
    assert names == {"newest": "step-000000060", "best": "step-000000040"}
    named = tmp_path / "checkpoints" / "step-000000010"
    assert open_trained(named, RUNTIME, "best").folder == named


def test_without_an_evaluation_none_is_the_best(tmp_path: Path) -> None:
    write_marker(tmp_path, 10, None)
    with pytest.raises(DataError, match="use which=newest"):
        open_trained(tmp_path, RUNTIME, "best")


def test_a_checkpoint_that_does_not_tell_its_columns_is_refused(tmp_path: Path) -> None:
    write_marker(tmp_path, 10, 0.7, config={})
    with pytest.raises(DataError, match="does not say how its dataset is encoded") as refused:
        open_trained(tmp_path, RUNTIME)
    assert "step-000000010" in str(refused.value)
    assert "resume=auto" in str(refused.value)


@pytest.mark.parametrize(("which", "next_one"), [("newest", 20), ("best", 10)])
def test_in_place_of_a_damaged_one_the_next_is_offered(tmp_path: Path, which: str, next_one: int) -> None:
    """None is taken in silence: its scores would be taken for the other's."""
    write_marker(tmp_path, 10, 0.7)
    write_marker(tmp_path, 20, None)
    write_marker(tmp_path, 30, 0.8, files={"tensors": [4, "sha256:0"]})
    (tmp_path / "checkpoints" / checkpoint_name(30) / "tensors").write_text("good")
    with pytest.raises(DlrmError, match="other bytes than were written") as refused:
        open_trained(tmp_path, RUNTIME, which)
    other = tmp_path / "checkpoints" / checkpoint_name(next_one)
    assert str(refused.value).endswith(f"the next {which} is {other.name}: name {other}")


def test_a_folder_around_checkpoints_or_without_any_is_called_what_it_is(tmp_path: Path) -> None:
    checkpoints = write_marker(tmp_path / "run", 10, 0.7).parent
    with pytest.raises(DataError, match=rf"name the run folder {tmp_path}/run, or one of them"):
        open_trained(checkpoints, RUNTIME)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/config.yaml").touch()
    with pytest.raises(DataError, match="has no whole checkpoint"):
        open_trained(tmp_path / "begun", RUNTIME)
    (tmp_path / "dataset").mkdir()
    with pytest.raises(DataError, match="is no checkpoint and no run folder"):
        open_trained(tmp_path / "dataset", RUNTIME)
    (checkpoints / checkpoint_name(20)).mkdir()
    with pytest.raises(DataError, match="its saving was interrupted"):
        open_trained(checkpoints / checkpoint_name(20), RUNTIME)
