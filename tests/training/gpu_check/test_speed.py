"""Batches that a step is timed on."""

import pytest
import torch

from dlrm_app.tables.specs import Table
from dlrm_app.training.gpu_check.speed import draw_batch


def test_batches_for_a_gpu_are_page_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Size] = []

    def pin(values: torch.Tensor) -> torch.Tensor:
        pinned.append(values.shape)
        return values

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    tables = [Table("t", 10, 4, ("f",)), Table("u", 20, 4, ("g",))]
    batch = draw_batch(tables, 6, 0, torch.device("cuda", 0))
    assert {batch.dense_features.shape, batch.labels.shape, torch.Size([12])} <= set(pinned)
    pinned.clear()
    draw_batch(tables, 6, 0, torch.device("cpu"))
    assert not pinned
