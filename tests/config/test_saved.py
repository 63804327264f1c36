"""Configurations that checkpoints hold, those of other versions too."""

from dataclasses import asdict
from pathlib import Path

from dlrm_app.config.train import TrainConfig, read_saved_config
from dlrm_app.errors import DataError
from tests.composed import compose_config
from tests.refusals import refused


def test_a_saved_configuration_is_read_back_unless_it_is_of_another_version() -> None:
    config = compose_config("train", TrainConfig, ["data.path=x"])
    values = asdict(config)
    assert read_saved_config(values, Path("c")) == config
    for key, change in (("later", {"later": 1}), ("tf32", {})):
        del values["trainer"]["tf32"]
        values["trainer"] |= change
        with refused(DataError, "c", "has the configuration of another version") as caught:
            read_saved_config(values, Path("c"))
        assert caught.value.problems[1].key == f"trainer.{key}"
        values["trainer"] = asdict(config.trainer)


def test_a_run_from_before_labels_were_balanced_is_read() -> None:
    config = compose_config("train", TrainConfig, ["data.path=x"])
    values = asdict(config)
    del values["trainer"]["balance_labels"]
    assert not read_saved_config(values, Path("c")).trainer.balance_labels
