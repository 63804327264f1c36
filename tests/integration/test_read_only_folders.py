"""An output that cannot be made: told in one line before any work. The same tests hold for root in CI."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dlrm_app.cli.commands import COMMANDS as TABLE
from dlrm_app.cli.commands import schema_of
from dlrm_app.config.compose import compose_config
from dlrm_app.errors import ConfigError
from tests.commands import command, run, succeed
from tests.loader.dataset_fixture import write_dataset
from tests.runs.checkpoint.test_marker import write_checkpoint
from tests.training.run_fixture import write_run

AS_ANYBODY = ["setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"]
"""Takes from root the right to write everywhere; what follows it is then refused as others are."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a dataset ``data``, a ``run``, lines of text, and ``closed``, which may only be read."""
    folder = tmp_path_factory.mktemp("disk")
    write_dataset(folder / "data", rows={"train": 64, "test": 64})
    write_run(folder / "run")
    write_checkpoint(folder / "run", 1, 0.7)
    line = "\t".join(["1", *["2"] * 13, *["1a"] * 26])
    (folder / "lines.tsv").write_text(f"{line}\n" * 20)
    (folder / "closed").mkdir(mode=0o555)
    yield folder
    (folder / "closed").chmod(0o755)


@pytest.fixture(scope="module")
def as_anybody(folder: Path) -> list[str]:
    """What stands before a command so that ``closed`` is closed to it."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None or subprocess.run([*AS_ANYBODY, "true"], check=False).returncode:
        pytest.skip("root writes everywhere, and setpriv cannot take that right away here")
    assert run([*AS_ANYBODY, "touch", "closed/x"], folder).returncode != 0
    return AS_ANYBODY


TRAIN = "experiment=null data.path=data tables=dataset trainer.global_batch_size=64"
COMMANDS = [
    ("train", f"{TRAIN} output=closed/run"),
    ("preprocess", "dataset=criteo_kaggle input.train=lines.tsv output=closed/new/data"),
    ("evaluate", "checkpoint=run data.path=data split=test output=closed/scores.json"),
    ("export", "checkpoint=run data.path=data output=closed/export"),
    ("predict", "model=run data.path=data output=closed/scores.parquet"),
    ("report", "runs=[run] output=closed/page.html"),
    ("generate", "rows=20 output=closed/clicks.tsv"),
    ("plan", "data.path=data tables=dataset topology=cpu_2 output=closed/plan"),
    ("bench", "output=closed/machine.yaml"),
    ("bench", f"{TRAIN} output=closed/bench"),
    ("bench", "tables=merlin_tiny model=concat output=closed/bench"),
]


def refused(name: str, keys: Sequence[str]) -> list[str]:
    """The problems that ``dlrm-NAME *keys`` finds before any work."""
    # preprocessing looks at its output once it knows its input
    check = TABLE[name].job if name == "preprocess" else TABLE[name].check
    with pytest.raises(ConfigError) as error:
        check(compose_config(name, schema_of(name), [*keys]))
    return [str(problem) for problem in error.value.problems]


ASK = """
import json
from tests.integration.test_read_only_folders import COMMANDS, refused
print(json.dumps([refused(name, keys.split()) for name, keys in COMMANDS]))
"""


def test_one_line_names_the_key_the_folder_and_the_cure(folder: Path, as_anybody: list[str]) -> None:
    before = sorted(folder.rglob("*"))
    root = str(Path(__file__).resolve().parents[2])
    done = succeed([*as_anybody, sys.executable, "-c", ASK], folder, PYTHONPATH=root)
    fault = f"lies in {folder}/closed, where you may not write: name another folder, or get permission to write there"
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [f"output={keys.rpartition('=')[2]} {fault}"] for _, keys in COMMANDS
    ]
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("name", "keys"), COMMANDS)
def test_a_name_that_is_too_long_is_refused_by_its_key(
    folder: Path, name: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    *keys_before, last = keys.split()
    output = "x" * 300 + Path(last).suffix
    expected = [f"output={output}: File name too long: give another name"]
    assert refused(name, [*keys_before, f"output={output}"]) == expected


def test_a_run_goes_on_only_where_its_own_folder_may_be_written(folder: Path, as_anybody: list[str]) -> None:
    """The folder itself counts, not the one around it."""
    keys = "data.path=data tables=dataset trainer.global_batch_size=64 resume=auto output=closed"
    done = run([*as_anybody, *command("train", *keys.split())], folder)
    assert f"output=closed lies in {folder}/closed, where you may not write" in done.stderr
    assert "Traceback" not in done.stderr
