"""complete.json is written again as it was read; one that is damaged or of another version is refused."""

import gc
import json
import math
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.checksums import text_checksum
from dlrm_app.config.train import ModelConfig, TrainConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError
from dlrm_app.locks import unlink_unlocked
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.checkpoint.load import open_trained
from dlrm_app.runs.checkpoint.marker import MARKER, read_marker, write_marker
from dlrm_app.runs.checkpoint.names import checkpoint_name, hold_checkpoint, remove_old
from dlrm_app.runs.checkpoint.progress import LossSums
from dlrm_app.text import json_text
from tests.refusals import refused


def marker_value() -> dict[str, Any]:
    """Of a run of two epochs on two ranks that stopped in the second one."""
    val = {"split": "val", "epoch": 0, "step": 31, "auc": 0.74, "logloss": 0.5, "num_samples": 900}
    return {
        "format": "dlrm-checkpoint",
        "version": 1,
        "files": {"index.json": [5280, "sha256:0a"], "__0_0.distcp": [91_000, "sha256:1b"]},
        "progress": {
            "epoch": 1,
            "batch": 9,
            "step": 40,
            "samples": 20_480,
            "train_seconds": 1.5,
            "train_loss": [0.53],
            "best": "auc",
            "evals": [val, {**val, "epoch": 1, "step": 40, "auc": 0.75}],
        },
        "meter": {
            "sums": [0.25, 0.5],
            "count": 2,
            "epoch_sum": 3.5,
            "epoch_count": 7,
            "clicks": [[9.0, 1.0, 6.0, 2.0]] * 2,
        },
        "random_state": "00ff",
        "dataset": "sha256:2c",
        "columns": {"dense": [], "sparse": []},
        "config": {"trainer": {"seed": 0}},
        "world_size": 2,
        "plan": {"tables": {}},
        "metrics_bytes": 3000,
        "tables": {"t_0": ["c0"]},
        "dataset_at": "../data",
    }


def write(folder: Path, value: object) -> Path:
    """With the checksum of a value that is a mapping."""
    checked = {"checksum": text_checksum(json_text(value))} if isinstance(value, dict) else {}
    (folder / MARKER).write_text(json.dumps({**value, **checked} if isinstance(value, dict) else value))
    return folder


def test_a_marker_is_written_again_as_it_was_read(tmp_path: Path) -> None:
    marker = read_marker(write(tmp_path, marker_value()))
    assert marker.progress.step == 40
    assert marker.progress.counted_updates == 40
    assert marker.progress.evals[0] == Evaluation(
        "val", 0, 31, {"auc": 0.74, "logloss": 0.5, "num_samples": 900}
    )
    assert marker.val_merit("auc") == (0.75, 0.0)
    assert marker.meter == LossSums([0.25, 0.5], 2, 3.5, 7, [[9.0, 1.0, 6.0, 2.0]] * 2)
    assert marker.files["index.json"] == (5280, "sha256:0a")
    write_marker(tmp_path, marker)
    again = json.loads((tmp_path / MARKER).read_text())
    assert again.pop("checksum").startswith("sha256:")
    assert again == marker_value()


def test_a_flipped_bit_changes_nothing_or_is_refused(tmp_path: Path) -> None:
    marker = read_marker(write(tmp_path, marker_value()))
    write_marker(tmp_path, marker)
    path = tmp_path / MARKER
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert read_marker(tmp_path) == marker
        except DataError:
            continue


@pytest.mark.parametrize(
    "value",
    [
        *(
            {key: part for key, part in marker_value().items() if key != lacking}
            for lacking in marker_value()
        ),
        *(
            {**marker_value(), "progress": {**marker_value()["progress"], key: "12"}}
            for key in ("batch", "step")
        ),
        [],
        "text",
        {**marker_value(), "files": 3},
    ],
)
def test_an_invalid_marker_is_reported_as_damaged(tmp_path: Path, value: object) -> None:
    with refused(
        DataError, str(tmp_path / "complete.json"), "is damaged, or not a dlrm-checkpoint file (...)"
    ):
        read_marker(write(tmp_path, value))


def test_a_later_version_is_refused_by_its_number(tmp_path: Path) -> None:
    with refused(
        DataError,
        ".../complete.json",
        "has version 2 of dlrm-checkpoint, this program reads version 1",
        "use a newer...",
    ):
        read_marker(write(tmp_path, {**marker_value(), "version": 2}))


def test_a_marker_without_a_checksum_is_damaged(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text(json.dumps(marker_value()))
    rule = "is damaged, ... (its values are not those that were written)"
    with refused(DataError, ".../complete.json", rule):
        read_marker(tmp_path)


RUNTIME = Runtime(0, 0, 1, 1, "cpu", 1)


def write_checkpoint(run: Path, step: int, auc: float | None, **others: Any) -> Path:
    """A complete checkpoint without any tensors; ``auc``: of the evaluation before it was saved."""
    folder = run / "checkpoints" / checkpoint_name(step)
    folder.mkdir(parents=True)
    scores = [("test", step, 0.99), ("val", 0, 0.98), *([] if auc is None else [("val", step, auc)])]
    evals = [{"split": split, "epoch": 0, "step": at, "auc": score} for split, at, score in scores]
    marker = {**marker_value(), "progress": {"step": step, "evals": evals}, "files": {}, **others}
    return write(folder, marker)


def test_the_newest_or_the_best_on_val_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dlrm_app.runs.checkpoint.trained.read_saved_config",
        lambda *_: TrainConfig(model=ModelConfig("dlrm")),
    )
    monkeypatch.setattr("dlrm_app.runs.checkpoint.trained.resolve_tables", lambda *_: [])
    for step, auc in ((10, 0.7), (20, 0.75), (30, math.nan), (40, 0.75), (50, 0.72), (60, None)):
        write_checkpoint(tmp_path, step, auc, columns={"dense": [], "sparse": []}, config={})
    names = {which: open_trained(tmp_path, RUNTIME, which).folder.name for which in ("newest", "best")}
    assert names == {"newest": "step-000000060", "best": "step-000000040"}
    named = tmp_path / "checkpoints" / "step-000000010"
    assert open_trained(named, RUNTIME, "best").folder == named


def test_without_an_evaluation_no_checkpoint_is_the_best(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10, None)
    with refused(
        DataError,
        str(tmp_path),
        "has no checkpoint that was evaluated on val, so none is the best",
        cure="use which=newest",
    ):
        open_trained(tmp_path, RUNTIME, "best")


@pytest.mark.parametrize("name", ["run/checkpoints", "begun", "dataset", "run/checkpoints/step-000000020"])
def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "run", 10, 0.7)
    (tmp_path / name).mkdir(exist_ok=True)
    with refused(
        DataError, str(tmp_path / name), "is neither a complete checkpoint nor a run folder that holds one"
    ):
        open_trained(tmp_path / name, RUNTIME)


def test_damaged_files_are_named_not_silently_passed_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10, 0.7)
    damaged = write_checkpoint(tmp_path, 30, 0.8, files={"tensors": [4, "sha256:0"]})
    (damaged / "tensors").write_text("good")
    with refused(DataError, "...step-000000030", "is damaged", cure="take it from a copy...") as caught:
        open_trained(tmp_path, RUNTIME)
    assert caught.value.problems[1].rule == "has other bytes than were written (checksum)"


def test_a_checkpoint_that_is_read_is_deleted_later(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step, 0.5 + step / 10)
    parent = tmp_path / "checkpoints"
    folder, held = hold_checkpoint(tmp_path, "newest")
    assert (folder.name, held is not None) == ("step-000000003", True)
    for step in (4, 5):
        write_checkpoint(tmp_path, step, 0.5)
        remove_old(parent, keep_last=1, keep_best=0)
    assert sorted(path.name for path in parent.iterdir()) == ["step-000000003", "step-000000005"]
    assert held is not None
    held.close()
    remove_old(parent, keep_last=1, keep_best=0)
    assert [path.name for path in parent.iterdir()] == ["step-000000005"]


def test_what_a_killed_process_has_half_deleted_goes_with_the_next_save(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, step, 0.5)
    parent = tmp_path / "checkpoints"
    (parent / "step-000000001" / "complete.json").unlink()
    (parent / "step-000000001" / "rank-00000.tensors").write_bytes(b"")
    remove_old(parent, keep_last=2, keep_best=0)
    assert [path.name for path in parent.iterdir()] == ["step-000000002"]


def test_a_checkpoint_is_let_go_with_its_last_holder(tmp_path: Path) -> None:
    """A reader that an error ends leaves no open file behind."""
    for step in (1, 2):
        write_checkpoint(tmp_path, step, 0.5)
    folder, held = hold_checkpoint(tmp_path, "newest")
    cycle: list[object] = [held]
    cycle.append(cycle)  # as an error's traceback makes
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del held, cycle
        gc.collect()
    assert [each for each in said if issubclass(each.category, ResourceWarning)] == []
    assert unlink_unlocked(folder / "complete.json")


def test_a_checkpoint_deleted_while_it_is_chosen_is_not_taken(tmp_path: Path) -> None:
    """A training deletes its checkpoints as fast as it can; a reader finds one that stays."""
    write_checkpoint(tmp_path, 1, 0.5)
    parent, is_over = tmp_path / "checkpoints", threading.Event()

    def train() -> None:
        step = 2
        while not is_over.is_set():
            folder = write_checkpoint(tmp_path / "new", step, 0.5)
            folder.rename(parent / folder.name)
            remove_old(parent, keep_last=1, keep_best=0)
            step += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for which in ["newest", "best"] * 20:
            folder, held = hold_checkpoint(tmp_path, which)
            time.sleep(0.02)
            assert read_marker(folder).progress.step > 0
            assert held is not None
            held.close()
    finally:
        is_over.set()
        thread.join()


def test_a_marker_deleted_before_it_is_read_is_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that trains deletes it after the folder was found."""
    folder = write_checkpoint(tmp_path, 1, 0.5)
    (folder / "complete.json").unlink()
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    with refused(
        DataError,
        ".../checkpoints/step-000000001",
        "is neither a complete checkpoint nor a run folder that holds one",
    ):
        read_marker(folder)
