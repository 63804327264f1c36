"""An output that cannot be made: told in one line before any work. The same tests hold for root in CI."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrm_app.cli.commands import COMMANDS as TABLE
from dlrm_app.cli.commands import schema_of
from dlrm_app.config.compose import compose_config
from dlrm_app.errors import ConfigError
from tests.commands import command, run
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


COMMANDS = pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "train",
            "experiment=null data.path=data tables=dataset trainer.global_batch_size=64 output=closed/run",
        ),
        ("preprocess", "dataset=criteo_kaggle input.train=lines.tsv output=closed/new/data"),
        ("evaluate", "checkpoint=run data.path=data split=test output=closed/scores.json"),
        ("export", "checkpoint=run data.path=data output=closed/export"),
        ("predict", "model=run data.path=data output=closed/scores.parquet"),
        ("report", "runs=[run] output=closed/page.html"),
        ("generate", "rows=20 output=closed/clicks.tsv"),
        ("plan", "data.path=data tables=dataset topology=cpu_2 output=closed/plan"),
        ("bench", "output=closed/machine.yaml"),
        (
            "bench",
            "experiment=null data.path=data tables=dataset trainer.global_batch_size=64 output=closed/bench",
        ),
        ("bench", "tables=merlin_tiny model=concat output=closed/bench"),
    ],
)


@COMMANDS
def test_one_line_names_the_key_the_folder_and_the_cure(
    folder: Path, as_anybody: list[str], name: str, keys: str
) -> None:
    before = sorted(folder.rglob("*"))
    done = run([*as_anybody, *command(name, *keys.split())], folder)
    assert done.returncode == 2, done.stderr
    output = keys.rpartition("=")[2]
    cure = "give a name in another folder, or have it opened to you"
    assert done.stderr == (
        "error: 1 problem in the configuration:\n"
        f"  - output={output}: you may not write in {folder}/closed: {cure}\n"
    )
    assert sorted(folder.rglob("*")) == before


@COMMANDS
def test_a_name_that_is_too_long_is_refused_by_its_key(
    folder: Path, name: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    output = "x" * 300 + Path(keys).suffix
    keys = keys.rpartition("=")[0] + f"={output}"
    config = compose_config(name, schema_of(name), keys.split())
    # preprocessing looks at its output once it knows its input
    check = TABLE[name].job if name == "preprocess" else TABLE[name].check
    with pytest.raises(ConfigError) as refused:
        check(config)
    assert refused.value.problems == [f"output={output}: File name too long: give another name"]


def test_a_run_goes_on_only_where_its_own_folder_may_be_written(folder: Path, as_anybody: list[str]) -> None:
    """The folder itself counts, not the one around it."""
    keys = "data.path=data tables=dataset trainer.global_batch_size=64 resume=auto output=closed"
    done = run([*as_anybody, *command("train", *keys.split())], folder)
    assert f"output=closed: you may not write in {folder}/closed" in done.stderr
    assert "Traceback" not in done.stderr
