"""A batch in pieces trains as the whole one: with any optimizer, tables fused or not, and any pipeline."""

import pytest
import torch

from dlrm_app.errors import ConfigError
from tests.plain_training import assert_trains_like_plain, compose_train


@pytest.mark.parametrize(
    "keys",
    [
        ["optimizer=adam", "trainer.pipeline=base"],
        ["model=dcn"],
    ],
)
def test_pieces_train_as_plain_torch_trains_on_the_whole_batch(keys: list[str]) -> None:
    """Of 32 rows: 5 pieces are not alike."""
    assert_trains_like_plain(compose_train(*keys, "trainer.micro_batches=5"))


def test_dropout_draws_the_same_masks_again_in_the_backward_pass() -> None:
    """Else the gradient would be that of another model."""
    from dlrm_app.model.loss import MicroBatches

    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse_arch = torch.nn.Identity()
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
            return self.drop((dense * self.sparse_arch(sparse)).sum(1, keepdim=True))

    dense, sparse = torch.ones(64, 1), torch.ones(64, 1, requires_grad=True)
    logits = MicroBatches(Model(), 4)(dense, sparse)
    logits.sum().backward()
    assert torch.equal(sparse.grad, logits.detach())  # 0 or 2
    assert set(logits.flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["trainer.micro_batches=0"], "trainer.micro_batches must be at least 1"),
        (["trainer.micro_batches=2", "model.batch_norm=true"], "batch norm a part of the batch"),
        (["trainer.micro_batches=2", "model.ensemble_size=2"], "does not cut an ensemble's rows"),
    ],
)
def test_what_pieces_would_change_is_refused(keys: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose_train(*keys)
