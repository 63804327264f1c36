"""What a command says to type next works as it stands, in a folder whose name needs quotes."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import ExportConfig
from dlrm_app.config.train import TrainConfig
from tests.commands import command, run


def next_line(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = re.findall(r"^next: (.*)$", done.stdout + done.stderr, re.MULTILINE)
    return shlex.split(line)


def type_in(folder: Path, words: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    return run(command(words[0].removeprefix("dlrm-"), *words[1:], *more), folder)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """From clicks to an evaluation, each command as the one before gave it, with sizes for a test added."""
    folder = tmp_path_factory.mktemp("a=b [1]")
    log = folder / "my clicks=(1).tsv"
    said = {"generate": next_line(run(command("generate", "rows=3000", f'output="{log}"'), folder))}
    said["preprocess"] = next_line(type_in(folder, said["generate"]))
    small = [
        "tables.embedding_dim=4",
        "trainer.global_batch_size=512",
        "model.bottom_mlp=[8]",
        "model.top_mlp=[8]",
    ]
    said["train"] = next_line(type_in(folder, said["preprocess"], *small, 'output="run=1, [a]"'))
    run_folder = said["train"][1]
    said["evaluate"] = next_line(type_in(folder, ["dlrm-evaluate", run_folder, "split=test"]))
    return folder, said


def test_one_command_leads_to_the_next(steps: tuple[Path, dict[str, list[str]]]) -> None:
    _, said = steps
    assert [words[0] for words in said.values()] == [
        "dlrm-preprocess",
        "dlrm-train",
        "dlrm-export",
        "dlrm-evaluate",
    ]
    assert said["evaluate"][-1] == "against=ANOTHER_RUN"
    assert compose_config("export", ExportConfig, said["train"][1:]).output.endswith("run=1, [a]_export")


def test_two_runs_are_compared_as_told(steps: tuple[Path, dict[str, list[str]]]) -> None:
    folder, said = steps
    words = [
        word.replace("ANOTHER_RUN", "run=1, [a]") if "ANOTHER" in word else word for word in said["evaluate"]
    ]
    words[-1] = 'against="run=1, [a]"'
    again = next_line(type_in(folder, words))
    assert again[-2:] == ["split=val", 'against="run=1, [a]"']


def test_a_plan_says_how_to_keep_and_how_to_train_it(tmp_path: Path) -> None:
    (tmp_path / "my tables.yaml").write_text(
        "embedding_dim: 8\nspecs: [{name: t, rows: 1000, features: [C1]}]\n"
    )
    typed = ["tables=my tables.yaml", "topology=cpu_2", "smallest=false", "trainer.global_batch_size=512"]
    keep = next_line(run(command("plan", *typed), tmp_path))
    assert keep == ["dlrm-plan", *typed, "output=plan"]
    train = next_line(type_in(tmp_path, keep))
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
        ("experiment=merlin_tiny", ["experiment=merlin_tiny"]),
    ],
)
def test_generated_inputs_are_trained_on_with_what_was_typed(
    tmp_path: Path, typed: str, trained: list[str]
) -> None:
    (tmp_path / "mine=1.yaml").write_text("embedding_dim: 8\nspecs: [{name: t, rows: 1000, features: [a]}]\n")
    words = next_line(run(command("generate", "format=dataset", "rows=10", typed, "output=data"), tmp_path))
    assert words == ["dlrm-train", "data.path=data", *trained, "output=run"]
