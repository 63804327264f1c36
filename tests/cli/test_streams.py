"""Jobs whose output nobody can read, or no terminal can show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preprocessing.clicks import make_clicks

GENERATE = str(Path(sys.executable).with_name("dlrm-generate"))


def test_a_reader_that_leaves_does_not_end_the_job() -> None:
    code = (
        "import sys; from dlrm_app.cli.process import set_up_streams; set_up_streams();"
        "[print('x' * 1000) for _ in range(1000)]; print('done', file=sys.stderr)"
    )
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stdout is not None
    job.stdout.read(10)
    job.stdout.close()
    _, errors = job.communicate(timeout=60)
    assert (job.returncode, errors) == (0, b"done\n")


def test_help_works_in_a_locale_without_its_characters() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([GENERATE, "--help"], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_closed_streams_are_left_closed(tmp_path: Path) -> None:
    script = f"{GENERATE} rows=10 output=x.tsv <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], cwd=tmp_path, timeout=60).returncode == 0
    assert (tmp_path / "x.tsv").read_bytes().count(b"\n") == 10


def test_a_deleted_working_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = f"cd gone; rmdir ../gone; {GENERATE} rows=10 output=x.tsv"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: the current folder has been deleted: cd to another\n"


@pytest.mark.slow
def test_names_and_values_give_no_commands_to_the_terminal(tmp_path: Path) -> None:
    """\x1b begins a command, also with its C1 form; a carriage return in a line overwrites it; a bar's begins one."""
    name = "a\x1b]0;pwned\x07b\x9b31m\rc.tsv"
    (tmp_path / name).write_text("x\n")
    command = [
        str(Path(GENERATE).with_name("dlrm-preprocess")),
        "dataset=criteo_kaggle",
        f'input.train="{name}"',
    ]
    done = subprocess.run([*command, "output=k"], cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 2
    assert rb"a\x1b]0;pwned\x07b\x9b31m\rc.tsv" in done.stderr
    assert not {*done.stderr} & {*b"\x1b\x07\r"}
    code = "from dlrm_app.cli.process import set_up_streams; set_up_streams(); print('\\r 5% \\r', end='')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).stdout == b"\r 5% \r"


@pytest.mark.slow
def test_numba_compiles_whatever_the_environment_says(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    (tmp_path / "x.tsv").write_bytes(make_clicks(50))
    program = str(Path(GENERATE).with_name("dlrm-preprocess"))
    settings = ["dataset=criteo_kaggle", "input.train=x.tsv", "output=k"]
    assert subprocess.run([program, *settings], cwd=tmp_path, env=environment, timeout=120).returncode == 0
