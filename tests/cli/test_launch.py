"""The commands as a user types them: installed scripts, run from another folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(sys.executable).with_name("dlrm-train")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TRAIN), *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_typo_ends_with_code_2_and_the_nearest_key(tmp_path: Path) -> None:
    done = run(tmp_path, "data.path=x", "trainer.epoch=3")
    assert done.returncode == 2
    assert "did you mean trainer.epochs?" in done.stderr
    assert "Traceback" not in done.stderr


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


def test_the_help_lists_keys_and_groups(tmp_path: Path) -> None:
    done = run(tmp_path, "--help")
    assert done.returncode == 0
    for word in ("global_batch_size", "optimizer: adagrad, adam", "tables:", "key=value"):
        assert word in done.stdout


def test_printing_the_configuration_starts_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "--cfg", "job", "data.path=nowhere", "trainer.epochs=7")
    assert done.returncode == 0
    assert "epochs: 7" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_missing_dataset_is_named_with_the_command_that_makes_one(tmp_path: Path) -> None:
    done = run(tmp_path, "data.path=nowhere")
    assert done.returncode == 1
    assert "no dataset at nowhere" in done.stderr
    assert "dlrm-preprocess output=nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pickled_configuration_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--experimental-rerun", "config.pickle")
    assert done.returncode == 1
    assert "unpickle" in done.stderr
