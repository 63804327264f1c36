"""The commands as a user types them: installed scripts, run from another folder."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dlrm_app.cli import launch
from dlrm_app.errors import ConfigError
from tests.commands import command
from tests.commands import run as subprocess_run

TRAIN = Path(sys.executable).with_name("dlrm-train")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TRAIN), *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


def test_unknown_keys_missing_ones_and_impossible_values_come_in_one_message(tmp_path: Path) -> None:
    done = run(tmp_path, "trainer.epoch=3", "optimizer.sparse.lr=-1", "model=dnc")
    assert "4 problems" in done.stderr
    for part in ("trainer.epochs?", "model=dcn?", "data.path is required", "optimizer.sparse.lr must be"):
        assert part in done.stderr


def test_a_missing_dataset_and_an_unknown_key_come_in_one_message(tmp_path: Path) -> None:
    done = run(tmp_path, "data.path=nowhere", "optimizer.sparse.learning_rate=1")
    assert done.returncode == 2
    assert "2 problems" in done.stderr
    assert "no dataset at nowhere" in done.stderr
    assert "optimizer.sparse.learning_rate is not a known key" in done.stderr


def test_ranks_that_say_nothing_do_not_end_before_the_first_has_spoken(tmp_path: Path) -> None:
    """torchrun ends all ranks once one has ended: the message of the first would be lost."""
    command = [str(TRAIN), "data.path=x", "trainer.epoch=3"]
    second = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "RANK": "1"}
    )
    try:
        first = run(tmp_path, *command[1:])
        assert "did you mean trainer.epochs?" in first.stderr
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=4)
    finally:
        second.terminate()
    assert second.communicate()[1] == ""


def test_a_rank_whose_settings_alone_are_wrong_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one does on a machine where the dataset is not."""
    monkeypatch.setattr(launch, "SILENT_SECONDS", 0)
    monkeypatch.setenv("RANK", "1")

    def refuse() -> None:
        raise ConfigError(["no dataset at x"])

    with pytest.raises(SystemExit):
        launch.or_explain(refuse)
    assert capsys.readouterr().err.startswith("error (rank 1): 1 problem")


def test_the_help_lists_groups_and_explains_keys(tmp_path: Path) -> None:
    done = run(tmp_path, "--help", "model=dcn")
    assert done.returncode == 0
    assert "optimizer=rowwise_adagrad: adagrad, adam" in done.stdout
    assert "model.kind=dcn" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("data.path=???")]
    assert line.endswith("a folder made by dlrm-preprocess")


def test_a_reader_that_leaves_the_help_early_causes_no_traceback(tmp_path: Path) -> None:
    command = f"{TRAIN} --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("dlrm-train")
    assert done.stderr == ""


def test_a_missing_dataset_is_named_with_the_command_that_makes_one(tmp_path: Path) -> None:
    done = run(tmp_path, "data.path=nowhere")
    assert done.returncode == 1
    assert "no dataset at nowhere" in done.stderr
    assert "dlrm-preprocess output=nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_option_in_the_middle_of_the_line_is_one_at_its_beginning(tmp_path: Path) -> None:
    command = TRAIN.with_name("dlrm-generate")
    arguments = ["rows=50", "-m", "seed=1,2", "output=clicks_${seed}.tsv"]
    subprocess.run([str(command), *arguments], cwd=tmp_path, check=True, timeout=120)
    assert {"clicks_1.tsv", "clicks_2.tsv"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    "arguments",
    [["-m", "foo"], ["--experimental-rerun", "config.pickle"], ["--config-dir", "."]],
)
def test_what_is_refused_is_refused_in_our_own_words(tmp_path: Path, arguments: list[str]) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "ydra" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file/sub", "x" * 300])
@pytest.mark.parametrize("key", ["output", "data.path"])
def test_a_name_that_cannot_be_is_told_in_one_line(tmp_path: Path, key: str, name: str) -> None:
    (tmp_path / "file").write_text("")
    start = ["generate", "rows=10"] if key == "output" else ["train", "tables=dataset"]
    done = subprocess_run(command(start[0], *start[1:], f"{key}={name}"), tmp_path)
    assert done.returncode == (2 if key == "output" else 1)  # the rule, or the disk's refusal
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_while_modules_are_imported_shows_no_traceback(tmp_path: Path) -> None:
    code = "import dlrm_app.cli; raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr == "interrupted\n"


def test_each_command_knows_its_version(tmp_path: Path) -> None:
    for name in ("train", "doctor", "report"):
        done = subprocess_run(command(name, "--version"), tmp_path)
        assert (done.returncode, done.stdout) == (0, f"dlrm-{name} {metadata.version('dlrm-app')}\n")


def test_words_behind_help_choose_its_keys(tmp_path: Path) -> None:
    done = run(tmp_path, "--help", "lanes", "model=dcn")
    assert re.findall(r"^([\w.]+)=", done.stdout, re.MULTILINE) == ["data.lanes"]
