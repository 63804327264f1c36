"""trainer.probe_memory measures before the run, and leaves the run as it would be without."""

import logging
from pathlib import Path

import pytest

from tests.loader.dataset_fixture import write_dataset
from tests.small_run import final_bytes, losses, train_here


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("probe") / "data"
    write_dataset(folder, rows={"train": 1000, "val": 100})
    return f"data.path={folder}"


def test_a_probed_run_is_the_run_without_to_the_bit(
    dataset: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fresh, and going on in mid-epoch from a checkpoint."""
    caplog.set_level(logging.INFO, "dlrm_app")
    train_here(tmp_path / "whole", dataset)
    train_here(tmp_path / "cut", dataset, "trainer.probe_memory=true", "trainer.max_steps=4")
    train_here(tmp_path / "cut", dataset, "trainer.probe_memory=true", "resume=auto")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert final_bytes(tmp_path / "cut") == final_bytes(tmp_path / "whole")
    assert "memory of 3 steps at full batch, estimated (tables and the rest) and measured:" in caplog.text
    assert "rank 0: " in caplog.text
    assert "beside its tables a rank needs about" in caplog.text
