"""What a command says to type next works as it stands, in a folder whose name needs quotes."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dlrm_app.api.command import Call
from dlrm_app.api.commands import COMMANDS, checked_config, schema_of
from dlrm_app.cli.next_lines import next_lines
from dlrm_app.config.export import ExportConfig
from dlrm_app.config.train import TrainConfig
from tests.composed import compose_config, read_words

Type = Callable[..., list[str]]
"""Runs a command, in this process, and gives the words of its "next:" line."""


@pytest.fixture
def type_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    folder = tmp_path / "a=b [1]"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def type_here(*words: str) -> list[str]:
        name = words[0].removeprefix("dlrm-")
        settings = read_words(schema_of(name), name, words[1:])
        config = checked_config(name, settings)
        call = Call(config, settings, words[1:])
        result = COMMANDS[name]().load()(config, call)
        (line,) = re.findall(r"^next: (.*)$", "\n".join(next_lines(name, result, call)), re.MULTILINE)
        return shlex.split(line)

    return type_here


@pytest.mark.slow
def test_one_command_leads_to_the_next(type_here: Type) -> None:
    """From clicks to an export, each as the one before gave it, with sizes for a test added."""
    generated = type_here("dlrm-generate", "rows=3000", f'output="{Path.cwd()}/my clicks=(1).tsv"')
    preprocessed = type_here(*generated)
    small = ["tables.embedding_dim=4", "trainer.global_batch_size=512", "trainer.threads=1"]
    small += ["model.bottom_mlp=[8]", "model.top_mlp=[8]"]
    trained = type_here(*preprocessed, *small, 'output="run=1, [a]"')
    names = [words[0] for words in (generated, preprocessed, trained)]
    assert names == ["dlrm-preprocess", "dlrm-train", "dlrm-export"]
    assert compose_config("export", ExportConfig, trained[1:]).output.endswith("run=1, [a]_export")
    reported = type_here("dlrm-report", 'runs=["run=1, [a]"]')
    assert type_here(*reported) == [
        "dlrm-export",
        'checkpoint="run=1, [a]"',
        'output="run=1, [a]_export"',
        "which=newest",
    ]


def test_a_plan_says_how_to_keep_and_how_to_train_it(type_here: Type) -> None:
    Path("my tables.yaml").write_text("embedding_dim: 8\nspecs: [{name: t, rows: 1000, features: [C1]}]\n")
    typed = ["tables=my tables.yaml", "topology=cpu_2", "smallest=false", "trainer.global_batch_size=512"]
    keep = type_here("dlrm-plan", *typed)
    assert keep == ["dlrm-plan", *typed, "output=plan"]
    train = type_here(*keep)
    start = train.index("dlrm_app.cli") + 1
    assert train[:start] == ["torchrun", "--standalone", "--nproc-per-node", train[3], "-m", "dlrm_app.cli"]
    settings = train[start + 1 :]
    assert settings == [typed[0], typed[3], "data.path=DATASET", "sharding.plan=plan/plan.yaml"]
    others = [each for each in settings if not each.startswith("tables=")]
    assert compose_config("train", TrainConfig, others).sharding.plan == "plan/plan.yaml"


@pytest.mark.parametrize(
    ("typed", "trained"),
    [
        ('tables="mine=1.yaml"', ['tables="mine=1.yaml"', "model=concat"]),
        ("merlin=tiny", ["merlin=tiny"]),
    ],
)
def test_generated_inputs_are_trained_on_with_what_was_typed(
    type_here: Type, typed: str, trained: list[str]
) -> None:
    Path("mine=1.yaml").write_text("embedding_dim: 8\nspecs: [{name: t, rows: 1000, features: [a]}]\n")
    words = type_here("dlrm-generate", "format=dataset", "rows=10", typed, "output=data")
    assert words == ["dlrm-train", "data.path=data", *trained, "output=run"]
