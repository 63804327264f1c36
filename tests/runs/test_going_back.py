"""Runs that go back, go on elsewhere or share a folder: no history is lost, and none is mixed with another."""

import json
from pathlib import Path

import pytest
import yaml

from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError, DlrmError
from dlrm_app.locks import held_lock
from dlrm_app.reports.run_page import write_report
from dlrm_app.reports.run_record import read_run
from dlrm_app.runs.checkpoint.marker import MARKER
from dlrm_app.runs.checkpoint.names import list_checkpoints
from dlrm_app.training.train import train
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused
from tests.small_run import events, small_config

SAVE_EVERY = ["checkpoint.every_steps=2", "checkpoint.keep_last=9", "checkpoint.keep_best=0"]


@pytest.fixture(autouse=True)
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps an epoch."""
    write_dataset(tmp_path / "data", rows={"train": 640, "val": 100})
    monkeypatch.chdir(tmp_path)


def small(output: str, *overrides: str) -> TrainConfig:
    keys = ["data.path=data", f"output={output}", "trainer.max_steps=6", "trainer.global_batch_size=64"]
    return small_config(*keys, *overrides)


def steps(run: str) -> list[int]:
    """Of its checkpoints, the newest first."""
    return [int(path.name[-9:]) for path in list_checkpoints(Path(run, "checkpoints"))]


def test_a_run_that_goes_back_sets_its_later_history_aside(caplog: pytest.LogCaptureFixture) -> None:
    train(small("r", *SAVE_EVERY))
    before = events(Path("r"))
    train(small("r", "resume=r/checkpoints/step-000000002", "trainer.max_steps=5", "checkpoint.keep_last=1"))
    assert steps("r")[0] == 5
    assert [event["step"] for event in events(Path("r"), "train")] == [1, 2, 3, 4, 5]
    record = read_run(Path("r"))
    assert record.result is not None
    assert record.result["steps"] == record.last_step == 5
    assert steps("r/set-aside-1") == [6, 4]
    assert events(Path("r/set-aside-1")) == before
    assert "everything after step 2 is set aside in" in caplog.text
    write_report(Path("r/set-aside-1"))
    assert train(small("again", "resume=r/set-aside-1", "trainer.max_steps=7")).result.steps == 7
    assert [event["step"] for event in events(Path("again"), "train")] == [1, 2, 3, 4, 5, 6, 7]
    assert train(small("r", "resume=auto")).result.steps == 6


def test_a_folder_is_one_run_s_at_a_time() -> None:
    Path("r").mkdir()
    with (
        held_lock(Path("r/.lock"), ""),
        refused(
            DlrmError, "", "another dlrm-train is working on output=.../r: wait for it, end it, or choose..."
        ),
    ):
        train(small("r"))
    train(small("r"))
    assert not Path("r/.lock").exists()
    with pytest.raises(ConfigError):
        train(small("new", "resume=r", "trainer.seed=3"))
    assert not Path("new").exists()


def test_a_resume_logs_changes_and_keeps_both_configurations(caplog: pytest.LogCaptureFixture) -> None:
    train(small("r"))
    train(small("r", "resume=auto", "trainer.max_steps=8", "optimizer.dense.lr=0.5"))
    assert "changed from step 6 on: optimizer.dense.lr" in caplog.text
    assert "→ 0.5; trainer.max_steps 6 → 8" in caplog.text
    before = yaml.safe_load(Path("r/config-until-step-000000006.yaml").read_text())
    assert before["trainer"]["max_steps"] == 6
    train(small("r", "resume=r/checkpoints/step-000000006", "trainer.max_steps=6"))
    assert not list(Path("r").glob("config-until-*"))


def test_a_full_disk_ends_a_run_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.dumps", _no_room)
    with refused(DlrmError, "output=...", "has no room left on its disk", "...resume=auto continues..."):
        train(small("r"))


def _no_room(*_arguments: object, **_options: object) -> str:
    raise OSError(28, "No space left on device")


def test_the_resume_hint_names_a_checkpoint_that_is_there() -> None:
    wild = ["optimizer=sgd", "optimizer.dense.lr=1e30", "trainer.max_steps=4"]
    with refused(
        DlrmError, "the loss", "was not finite ...", "...there is no checkpoint yet: resume=auto starts again"
    ):
        train(small("wild", *wild))
    train(small("r", "trainer.max_steps=2", "optimizer=sgd"))
    with refused(DlrmError, "the loss", "was not finite ...", "...resume=auto continues from step-000000002"):
        train(small("r", "resume=auto", *wild))
    assert json.loads(Path("r/checkpoints/step-000000002", MARKER).read_text())["progress"]["step"] == 2
