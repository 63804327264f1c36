"""A run that goes on keeps its lanes, which decide its batches, whatever ranks it goes on with."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.model import initial_weights
from dlrm_app.training.warm_start import choose_lanes
from tests.composed import compose_config
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused
from tests.small_run import evaluate_here, events, train_here


def config(*overrides: str) -> TrainConfig:
    return compose_config("train", TrainConfig, ["data.path=x", *overrides])


def checkpoint(lanes: int | None) -> Any:
    saved = config() if lanes is None else config(f"data.lanes={lanes}")
    return SimpleNamespace(folder=Path("RUN"), marker=SimpleNamespace(config=asdict(saved)))


@pytest.mark.parametrize(
    ("given", "saved", "num_ranks", "expected"),
    [
        (None, None, 1, 64),
        (None, None, 128, 128),
        (32, None, 8, 32),
        (None, 64, 1, 64),
        (None, 128, 8, 128),  # stopped on 128 ranks, goes on with 8
        (None, 8, 2, 8),
        (32, 64, 8, 32),  # its own is compared with the run's, elsewhere
    ],
)
def test_lanes_are_the_given_ones_or_the_runs_or_enough(
    given: int | None, saved: int | None, num_ranks: int, expected: int
) -> None:
    run = checkpoint(saved) if saved else None
    asked = config() if given is None else config(f"data.lanes={given}")
    assert choose_lanes(asked.data.lanes, run, num_ranks) == expected


def test_too_many_ranks_for_the_lanes_are_refused_with_a_cure() -> None:
    with refused(
        ConfigError, "data.lanes=64", "of the run that RUN belongs to is not a multiple of the 128 ranks"
    ):
        choose_lanes(None, checkpoint(64), 128)


def test_chosen_lanes_are_kept_in_the_runs_configuration(tmp_path: Path) -> None:
    """Alone it would be 64; the run goes on with what it began with, and has the batches of one that was never cut."""
    write_dataset(tmp_path / "data", rows={"train": 1024})
    keys = [f"data.path={tmp_path / 'data'}", "trainer.epochs=2"]
    train_here(tmp_path / "whole", *keys)
    train_here(tmp_path / "cut", *keys, "trainer.max_steps=5", "checkpoint.every_epoch=true")
    train_here(tmp_path / "cut", *keys, "data.lanes=null", "resume=auto")
    assert events(tmp_path / "cut", "train") == events(tmp_path / "whole", "train")
    marker = max((tmp_path / "cut/checkpoints").glob("step-*")) / "complete.json"
    assert '"lanes": 8' in marker.read_text()
    with refused(DataError, ".../cut/checkpoints/step-000000016", "is of another model or optimizer"):
        train_here(tmp_path / "cut", *keys, "resume=auto", "optimizer=adam", "trainer.epochs=3")
    train_here(tmp_path / "fresh", *keys, "data.lanes=null", "trainer.max_steps=1")
    assert "lanes: 64" in (tmp_path / "fresh/config.yaml").read_text()


def test_nothing_is_drawn_that_a_checkpoint_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "data", rows={"train": 1024})
    keys = [f"data.path={tmp_path / 'data'}", "resume=auto"]
    train_here(tmp_path / "run", *keys, "trainer.max_steps=3")
    monkeypatch.setattr(initial_weights, "draw_block", lambda *_: pytest.fail("a table was drawn"))
    result = train_here(tmp_path / "run", *keys)
    assert result.steps == 8
    evaluate_here(f"checkpoint={tmp_path / 'run'}", "split=train")
