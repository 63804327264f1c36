"""An output that cannot be made: told in one line before any work. The same tests hold for root in CI."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from dlrm_app.api.commands import COMMANDS as TABLE
from dlrm_app.api.commands import schema_of
from dlrm_app.errors import ConfigError
from dlrm_app.preprocessing.preprocess import preprocess
from tests.composed import compose_config
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import start_ranks
from tests.runs.checkpoint.test_marker import write_checkpoint
from tests.training.run_fixture import write_run


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


TRAIN = "experiment=null data.path=data tables=dataset trainer.global_batch_size=64"
COMMANDS = [
    ("train", f"{TRAIN} output=closed/run"),
    ("train", f"{TRAIN} resume=auto output=closed"),  # the folder itself counts, not the one around it
    ("preprocess", "dataset=criteo_kaggle input.train=lines.tsv output=closed/new/data"),
    ("evaluate", "checkpoint=run data.path=data split=test output=closed/scores.json"),
    ("export", "checkpoint=run data.path=data output=closed/export"),
    ("predict", "model=run data.path=data output=closed/scores.parquet"),
    ("report", "runs=[run] output=closed/page.html"),
    ("generate", "rows=20 output=closed/clicks.tsv"),
    ("plan", "data.path=data tables=dataset topology=cpu_2 output=closed/plan"),
]


def refused(name: str, keys: Sequence[str]) -> list[str]:
    """The problems that ``dlrm-NAME *keys`` finds before any work."""
    # preprocessing looks at its output once it knows its input
    check = preprocess if name == "preprocess" else TABLE[name]().check
    with pytest.raises(ConfigError) as error:
        check(compose_config(name, schema_of(name), [*keys]))
    return [str(problem) for problem in error.value.problems]


def as_anybody() -> None:
    """Takes from this process, if it is root's, the right to write everywhere (CAP_DAC_OVERRIDE, which is bit 1)."""
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for low in range(3):  # effective, permitted and inheritable
        sets[low] &= ~2
    assert libc.capset(header, sets) == 0


def refused_as_anybody(folder: Path) -> list[list[str]]:
    as_anybody()
    os.chdir(folder)
    with pytest.raises(PermissionError):
        Path("closed/x").touch()
    return [refused(name, keys.split()) for name, keys in COMMANDS]


def test_one_line_names_the_key_the_folder_and_the_cure(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    fault = f"lies in {folder}/closed, where you may not write: name another folder, or get permission to write there"
    assert start_ranks(partial(refused_as_anybody, folder), 1, 1) == [
        [[f"output={keys.rpartition('=')[2]} {fault}"] for _, keys in COMMANDS]
    ]
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("name", "keys"), COMMANDS)
def test_a_name_that_is_too_long_is_refused_by_its_key(
    folder: Path, name: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    *keys_before, last = keys.split()
    output = "x" * 300 + Path(last).suffix
    expected = [f"output={output} cannot be written (File name too long): give another name"]
    assert refused(name, [*keys_before, f"output={output}"]) == expected
