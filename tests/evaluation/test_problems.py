"""What dlrm-evaluate is refused for, before any work."""

from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.errors import ConfigError
from dlrm_app.evaluation.problems import check_paths


def test_wrong_values_and_paths_come_in_one_message(tmp_path: Path) -> None:
    wrong = ["checkpoint=nowhere", "against=neither", "data.path=nothing", "batch_size=0"]
    config = compose_config("evaluate", EvaluateConfig, [*wrong, f"output={tmp_path}/missing/y.json"])
    with pytest.raises(ConfigError) as caught:
        check_paths(config, is_first=True)
    text = str(caught.value)
    for part in (
        "no checkpoint at nowhere",
        "no checkpoint at neither",
        "no dataset at nothing",
        "batch_size must be",
    ):
        assert part in text
    assert f"needs the folder {tmp_path}/missing" in text
    with pytest.raises(ConfigError) as caught:  # the first rank writes it, perhaps on another machine
        check_paths(config, is_first=False)
    assert "needs the folder" not in str(caught.value)
