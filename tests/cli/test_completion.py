"""The Tab key in a shell, for the commands as they are installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(sys.executable).parent


def press_tab(folder: Path, line: str) -> list[str]:
    """What bash offers behind ``line`` once the completion of its command is installed."""
    name = line.partition(" ")[0]
    script = (
        f'eval "$({name} --shell-completion install=bash)"\n'
        f"COMP_LINE={line!r} COMP_POINT={len(line)} COMP_CWORD={len(line.split(' ')) - 1}\n"
        "$(complete -p " + name + " | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dlrm-train trainer.ep", {"trainer.epochs="}),
        ("dlrm-preprocess data.path=x encoding=h", {"encoding=hash"}),
    ],
)
def test_keys_and_choices_are_offered(tmp_path: Path, line: str, offered: set[str]) -> None:
    assert offered <= set(press_tab(tmp_path, line))


def test_a_file_whose_name_is_a_command_is_not_run(tmp_path: Path) -> None:
    """bash expands what it is offered."""
    for name in ("$(touch run).yaml", "`touch run`.yaml", "<(touch run).yaml", "a$HOME.yaml", "mine.yaml"):
        (tmp_path / name).touch()
    assert press_tab(tmp_path, "dlrm-train tables=./") == ["tables=./mine.yaml"]
    assert not (tmp_path / "run").exists()
