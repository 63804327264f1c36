"""Reading a checkpoint that its run, which still trains, deletes."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint

from dlrm_app.errors import DataError
from dlrm_app.runs.checkpoint import load
from dlrm_app.runs.checkpoint.load import load_tensors, open_checkpoint
from dlrm_app.runs.checkpoint.storage import INDEX, TensorWriter
from tests.runs.checkpoint.test_marker import RUNTIME, write_checkpoint


def test_a_checkpoint_that_is_deleted_while_it_is_verified_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, 10, 0.7)
    verify = load.verify_files

    def too_late(folder: Path, files: object) -> None:
        shutil.rmtree(folder)
        verify(folder, {INDEX: (1, "")})

    monkeypatch.setattr(load, "verify_files", too_late)
    with pytest.raises(DataError, match=r"was deleted while it was read.*\n?.*again"):
        open_checkpoint(folder, RUNTIME)


@pytest.mark.parametrize("when", ["before the index is read", "after it"])
def test_one_that_is_deleted_while_its_tensors_are_read_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    folder = write_checkpoint(tmp_path, 10, 0.7)
    torch.distributed.checkpoint.save({"w": torch.ones(3)}, storage_writer=TensorWriter(folder, None))
    loaded = {"w": torch.zeros(3)}
    load_tensors(folder, loaded)
    assert loaded["w"].tolist() == [1, 1, 1]
    read = load.load
    if when == "after it":
        monkeypatch.setattr(load, "load", lambda *a, **k: (shutil.rmtree(folder), read(*a, **k)))
    else:
        shutil.rmtree(folder)
    with pytest.raises(DataError, match="was deleted while it was read"):
        load_tensors(folder, loaded)
