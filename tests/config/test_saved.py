"""Configurations that earlier versions saved in their checkpoints."""

from dataclasses import asdict
from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.saved import read_saved_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import DataError


def test_a_key_added_since_has_its_default_and_an_unknown_one_is_refused() -> None:
    config = compose_config("train", TrainConfig, ["data.path=x"])
    values = asdict(config)
    del values["trainer"]["tf32"]
    assert read_saved_config(values, Path("c")) == config
    values["trainer"]["later"] = 1
    with pytest.raises(DataError, match=r"checkpoint c has .* another version: trainer\.later is not known"):
        read_saved_config(values, Path("c"))
