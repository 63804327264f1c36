"""What every test relies on."""

import fcntl
import gc
import os
import sys

gc.disable()  # until every module is imported: it looks through millions of objects in vain

import copy  # noqa: E402
from collections.abc import Callable, Iterator, Mapping  # noqa: E402
from multiprocessing import forkserver  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from tests.commands import MadeOnce, Typed  # noqa: E402

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the commands do, before torch loads OpenMP
# torch asks NVML for GPUs: fbgemm's import would start the driver, after which a process's copies cannot use it
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many processes that tests start compile nothing twice
sys.dont_write_bytecode = False
# no test cuts the power, and waiting for the disk is a third of the time of some
os.fsync = lambda _file: None

# time tells of the machine, and first calls compile; every run of the tests draws other examples
settings.register_profile("quick", deadline=None, max_examples=50)
settings.load_profile("quick")


@pytest.fixture(scope="session", autouse=True)
def files_merged_once() -> Iterator[None]:
    """Merges the files of conf/ once for equal choices: Hydra takes 60 ms, and tests compose thousands of times."""
    from dlrm_app.config import compose

    merge, merged = compose.merged_files, {}

    def merge_once(command: str, schema: Any, choices: Mapping[str, object]) -> Any:
        if any(
            str(choice).startswith("file_") for choice in choices.values()
        ):  # a test's own, which may change
            return merge(command, schema, choices)
        key = (command, schema, *choices.items())
        if key not in merged:
            merged[key] = merge(command, schema, choices)
        return copy.deepcopy(merged[key])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compose, "merged_files", merge_once)
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """``made_once(name, make)``: the folder that ``make(folder)`` fills once for all workers; not to be changed."""
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def find(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / name
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                make(folder)
        return folder

    return find


@pytest.fixture(scope="session")
def dataset(made_once: MadeOnce) -> Path:
    """For tests that need any: 31 steps of 128 rows an epoch. Not to be changed."""
    from tests.loader.dataset_fixture import write_dataset  # once the environment is set

    rows = {"train": 4000, "val": 1001, "test": 1003}
    return made_once("dataset", lambda folder: write_dataset(folder, rows=rows))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Typed:
    """``typed(command, *words)``: the exit code and what is said, in a folder of its own and in this process."""
    from dlrm_app.cli import commands, launch

    def end_process(code: Any) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(launch, "_set_up_process", lambda: None)  # it is the tests'
    monkeypatch.setattr(launch, "end_process", end_process)
    monkeypatch.chdir(tmp_path)

    def run(command: str, *words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", [f"dlrm-{command}", *words])
        with pytest.raises(SystemExit) as ended:
            commands.run(command)
        return ended.value.code or 0, "".join(capsys.readouterr())

    return run


def pytest_collection_finish() -> None:
    """What was imported stays; from here on only what tests make is looked through."""
    gc.freeze()
    gc.enable()
    if "tests.ranks" in sys.modules:
        forkserver.ensure_running()  # it loads torch while the first tests run


def pytest_sessionfinish() -> None:
    """Frees what holds process groups while Python can still join their threads (see cli/launch.py)."""
    gc.collect()
