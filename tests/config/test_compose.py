"""Configurations are composed anew each time: nothing is shared, and changed files count."""

from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from tests import composed


def test_a_composed_tree_is_not_shared() -> None:
    changed = compose_config("train", TrainConfig, {"data.path": "x"})
    changed.model.bottom_mlp.append(7)
    changed.tables.data_types["t"] = "fp16"
    again = compose_config("train", TrainConfig, {"data.path": "x"})
    assert again.tables.data_types == {}
    assert again.model.bottom_mlp == changed.model.bottom_mlp[:-1]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    for epochs in (3, 4):
        own.write_text(f"trainer: {{epochs: {epochs}}}")
        config = compose_config("train", TrainConfig, {"data.path": "x", "experiment": str(own)})
        assert config.trainer.epochs == epochs


@pytest.mark.parametrize(
    ("typed", "settings"),
    [
        (
            ["sharding={plan: x.yaml}", "sharding.types=[row_wise]"],
            {"sharding": {"plan": "x.yaml", "types": ["row_wise"]}},
        ),
        (
            ["tables.data_types={t_*:fp16}", "tables.data_types={u:fp32}"],
            {"tables.data_types": {"t_*": "fp16", "u": "fp32"}},
        ),
        (["+tables.data_types.t_a=fp16"], {"tables.data_types.t_a": "fp16"}),
        (["++trainer.seed=5", "trainer.seed=6"], {"trainer.seed": 6}),
        (["output=runs/${trainer.seed}"], {"output": "runs/0"}),
        (["output=${hydra:job.name}"], {"output": "app"}),
    ],
)
def test_words_and_mappings_are_composed_alike(typed: list[str], settings: dict[str, object]) -> None:
    by_words = composed.compose_config("train", TrainConfig, ["data.path=x", *typed])
    flat = composed.read_words(TrainConfig, "train", typed) if "sharding" in settings else settings
    assert by_words == compose_config("train", TrainConfig, {"data.path": "x", **flat})
