"""What every test relies on."""

import gc
import os
import sys

gc.disable()  # until every module is imported: it looks through millions of objects in vain

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from tests.quick_compose import remember_files  # noqa: E402

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the commands do, before torch loads OpenMP
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many processes that tests start compile nothing twice
sys.dont_write_bytecode = False
# no test cuts the power, and waiting for the disk is a third of the time of some
os.fsync = lambda _file: None

settings.register_profile("no deadline", deadline=None)  # time tells of the machine, and first calls compile
settings.load_profile("no deadline")
remember_files()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that need any: 31 steps of 128 rows an epoch. Not to be changed."""
    from tests.loader.dataset_fixture import write_dataset  # once the environment is set

    folder = tmp_path_factory.mktemp("clicks") / "dataset"
    write_dataset(folder, rows={"train": 4000, "val": 1001, "test": 1003})
    return folder


def pytest_collection_finish() -> None:
    """What was imported stays; from here on only what tests make is looked through."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Frees what holds process groups while Python can still join their threads (see cli/launch.py)."""
    gc.collect()
