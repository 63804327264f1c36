"""The dataset that a run was trained on may have moved since."""

from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.config.train import EvaluationConfig, ModelConfig, TrainerConfig
from dlrm_app.errors import DataError
from dlrm_app.evaluation.evaluate_checkpoints import open_rows
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.runs.checkpoint.marker import TrainedModel, read_marker
from tests.runs.checkpoint.test_marker import write_checkpoint


def test_a_dataset_that_is_gone_is_told_with_the_key_that_names_its_new_place(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "run", 10, 0.7)
    spec = ModelSpec(ModelConfig(), [], 0)
    trained = TrainedModel(folder, read_marker(folder), spec, TrainerConfig(), EvaluationConfig(), "gone")
    config = compose_config("evaluate", EvaluateConfig, ["checkpoint=run"])
    with pytest.raises(DataError, match=r"trained on, is not there: if it was moved, add data\.path="):
        open_rows(tmp_path / "moved", [trained], config)
