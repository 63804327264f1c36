"""The floor of a step, against arithmetic written out."""

import pytest
import torch

from dlrm_app.tables.specs import Table
from dlrm_app.training.gpu_check.speed import draw_batch, step_floor


def test_the_floor_is_what_must_be_moved_and_multiplied() -> None:
    """1,000 rows of 2 features of width 4: 7 × 8,000 floats; 10 weights; 3 × 3 products of width 4, thrice."""
    memory_alone = step_floor(1000, 2, 4, 10, (1.0, float("inf")))
    products_alone = step_floor(1000, 2, 4, 10, (float("inf"), 1.0))
    assert memory_alone == 7 * 8_000 * 4
    assert products_alone == pytest.approx(6 * 1000 * 10 + 3 * 2 * 1000 * 9 * 4)
    assert step_floor(1000, 2, 4, 10, (1.0, 1.0)) == pytest.approx(memory_alone + products_alone)


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
