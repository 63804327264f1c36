"""What dlrm-evaluate is refused for, before any work."""

from dataclasses import asdict
from pathlib import Path

import pytest

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError, DlrmError
from dlrm_app.evaluation.problems import check_paths
from tests.composed import compose_config
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import find_problem, refused
from tests.runs.checkpoint.test_marker import write_checkpoint


def test_wrong_values_and_paths_come_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "y.json").mkdir()
    wrong = ["checkpoint=nowhere", "against=neither", "data.path=nothing", "batch_size=0"]
    config = compose_config("evaluate", EvaluateConfig, [*wrong, f"output={tmp_path}/y.json"])
    with pytest.raises(ConfigError) as caught:
        check_paths(config, is_first=True)
    for key, rule in (
        ("nowhere", "does not exist"),
        ("neither", "does not exist"),
        ("nothing", "does not exist"),
        ("batch_size", "must be at least 1 and at most ..."),
        (f"output={tmp_path}/y.json", "is a folder"),
    ):
        assert find_problem(caught.value, key, rule)
    with pytest.raises(ConfigError) as caught:  # the first rank writes it, perhaps on another machine
        check_paths(config, is_first=False)
    assert "is a folder" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "key", "rule"),
    [
        ("split=val", "...data", "has no val split, only train, test"),
        ("group_by=m0", "group_by=m0", "is neither a one-hot feature..."),
        ("group_by=request", "group_by=request", "is neither ... nor a column that ...data keeps (keep=)"),
    ],
)
def test_a_dataset_without_the_needed_parts_is_refused_beforehand(
    tmp_path: Path, typed: str, key: str, rule: str
) -> None:
    write_dataset(tmp_path / "data", rows={"train": 64, "test": 10})
    (tmp_path / "run").mkdir()
    keys = [f"checkpoint={tmp_path}/run", f"data.path={tmp_path}/data", "split=test", typed]
    with refused(DlrmError, key, rule):
        check_paths(compose_config("evaluate", EvaluateConfig, keys), is_first=True)


@pytest.mark.parametrize("word", ["against=run", "ema=true", "which=best", "batch_size=64"])
def test_checkpoint_settings_are_refused_for_scores_alone(word: str) -> None:
    with refused(ConfigError, word.partition("=")[0], "is for checkpoints (checkpoint=RUN)"):
        compose_config("evaluate", EvaluateConfig, ["scores=[s.parquet]", word])


def test_a_moved_dataset_is_reported_beforehand(tmp_path: Path) -> None:
    """And not to be made again."""
    config = compose_config("train", TrainConfig, [f"data.path={tmp_path}/moved"])
    write_checkpoint(tmp_path / "run", 10, 0.7, config=asdict(config))
    keys = [f"checkpoint={tmp_path}/run"]
    with refused(DlrmError, ".../moved", "does not exist, and .../run was trained on the dataset there"):
        check_paths(compose_config("evaluate", EvaluateConfig, keys), is_first=True)
