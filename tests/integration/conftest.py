"""A dataset for tests that need any."""

from pathlib import Path

import pytest

from tests.loader.dataset_fixture import write_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """31 steps of 128 rows an epoch; not to be changed."""
    folder = tmp_path_factory.mktemp("clicks") / "dataset"
    write_dataset(folder, rows={"train": 4000, "val": 1001, "test": 1003})
    return folder
