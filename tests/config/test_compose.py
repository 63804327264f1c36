"""Composing from memory gives what Hydra makes of the same words."""

from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from dlrm_app.config import compose as composing
from dlrm_app.config.compose import compose_config, conf_dir
from dlrm_app.config.overrides import check_overrides
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError
from tests.config.test_hostile_values import COMMANDS
from tests.refusals import refused

WORDS = {
    "train": [
        "model=dcn",
        "experiment=kaggle_small",
        "experiment=null",
        "optimizer=adam",
        "trainer.epochs=3",
        "tables.embedding_dim=8",
        "model.bottom_mlp=[4,4]",
        "sharding.tables={t_a:{types:[row_wise]}}",
        "tables.data_types={t_*:fp16}",
        "output=null",
        "++trainer.seed=5",
        "output=runs/${trainer.seed}",
        "output=${hydra:job.name}",
        "sharding={plan: x.yaml}",
    ],
    "preprocess": [
        "dataset=criteo_kaggle",
        "encoding=vocab",
        "encoding.num_embeddings={user: 5}",
        "split.val=0.1",
    ],
    "plan": ["topology=cpu_2", "topology.nodes=2", "experiment=mlperf_dcnv2", "smallest=false"],
    "generate": ["rows=20", "merlin=tiny", "tables.specs=[{name: a, rows: 5}]"],
}


def both(command: str, schema: type[Any], words: list[str]) -> list[tuple[Any, Any]]:
    """(values, group → choice) as composed twice, the second time from memory, and as by Hydra alone."""
    checked, problems = check_overrides(words, schema, conf_dir(), command)
    assert problems == []
    _, overrides = composing.take_settings(schema, checked)
    parsed = OverridesParser.create().parse_overrides(overrides)
    trees = [composing._compose(command, schema, parsed) for _ in range(2)]
    trees.append(composing._by_hydra(command, schema, overrides))
    found = []
    for tree in trees:
        values = OmegaConf.to_container(tree, resolve=False)
        assert isinstance(values, dict)
        found.append((values.pop("hydra")["runtime"]["choices"], values))
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_memory_gives_what_hydra_gives(command: str) -> None:
    schema, required = COMMANDS[command]
    words = WORDS.get(command, [])
    for more in ([], *([word] for word in words), words[1:2] + words[3:7]):
        first, second, by_hydra = both(command, schema, [*required, *more])
        assert first == second == by_hydra, more


def test_a_composed_tree_is_not_shared(tmp_path: Path) -> None:
    changed = compose_config("train", TrainConfig, ["data.path=x"])
    changed.model.bottom_mlp.append(7)
    changed.tables.data_types["t"] = "fp16"
    again = compose_config("train", TrainConfig, ["data.path=x"])
    assert again.tables.data_types == {}
    assert again.model.bottom_mlp == changed.model.bottom_mlp[:-1]


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.yaml"
    for epochs in (3, 4):
        own.write_text(f"trainer: {{epochs: {epochs}}}")
        assert (
            compose_config("train", TrainConfig, ["data.path=x", f"experiment={own}"]).trainer.epochs
            == epochs
        )
    conf = tmp_path / "conf"
    for path in conf_dir().rglob("*.yaml"):
        copy = conf / path.relative_to(conf_dir())
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    monkeypatch.setattr(composing, "conf_dir", lambda: conf)
    assert compose_config("train", TrainConfig, ["data.path=x"]).trainer.epochs == 1
    train = conf / "train.yaml"
    train.write_text(train.read_text().replace("  epochs: 1 ", "  epochs: 7 "))
    assert compose_config("train", TrainConfig, ["data.path=x"]).trainer.epochs == 7


def test_hydras_own_errors_stay() -> None:
    with refused(ConfigError, "", "Could not override 'tables.data_types.t_a'."):
        compose_config("train", TrainConfig, ["data.path=x", "tables.data_types.t_a=fp16"])
