"""The loss of weighted rows and of sampled negatives: plain torch in float64, on one rank and two."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.loader.batch import Batch
from dlrm_app.loader.supervision import Supervision
from dlrm_app.model.loss import ClickLoss
from tests.integration.sharded_losses import dense_weights, whole_tables, wishes
from tests.plain_model import PlainModel
from tests.plain_training import compose_train, plain_copy, plain_optimizers, weights_of
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.ranks import on_ranks
from tests.trainable import trainable_of

ROWS, STEPS = 32, 6
SHARE = 0.1


def draw_weights(seed: int) -> torch.Tensor:
    """Uneven: nearly all weight is in the first half, which the first of two ranks gets; some are 0."""
    weights = torch.rand(ROWS, generator=torch.Generator().manual_seed(seed)) * torch.linspace(9, 0.01, ROWS)
    weights[::5] = 0.0
    return weights


def by_hand(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, share: float) -> torch.Tensor:
    """Σwl / Σw of the sampled log's odds, in float64."""
    losses = F.binary_cross_entropy_with_logits(
        logits.double() - math.log(share), labels.double(), reduction="none"
    )
    return (weights.double() * losses).sum() / weights.double().sum()


@pytest.mark.parametrize("share", [1.0, SHARE])
@pytest.mark.parametrize("num_pieces", [1, 4])
def test_loss_and_gradient_match_the_written_out_formula(num_pieces: int, share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, 1, generator=generator, requires_grad=True)
    labels, weights = (torch.rand(ROWS, generator=generator) < 0.3).float(), draw_weights(1)
    loss = ClickLoss(num_pieces, kept_share=share)
    found = loss(logits, Supervision(labels.unsqueeze(0), weights))
    (gradient,) = torch.autograd.grad(found, logits)
    pieces = [each.chunk(num_pieces) for each in (logits.flatten(), labels, weights)]
    expected = torch.stack([by_hand(*piece, share) for piece in zip(*pieces, strict=True)]).mean()
    (by_hand_gradient,) = torch.autograd.grad(expected, logits)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, by_hand_gradient, rtol=1e-5, atol=1e-8)


def test_rows_of_no_weight_give_no_loss_and_no_gradient() -> None:
    logits = torch.tensor([[3.0], [-1.0]], requires_grad=True)
    found = ClickLoss()(logits, Supervision(torch.tensor([[0.0, 1.0]]), torch.zeros(2)))
    assert found.item() == 0.0
    assert torch.autograd.grad(found, logits)[0].tolist() == [[0.0], [0.0]]


def test_without_weights_the_loss_is_torchs_to_the_bit() -> None:
    logits, labels = torch.randn(999), (torch.rand(999) < 0.3).float()
    taught = Supervision.unweighted(labels.unsqueeze(0))
    assert ClickLoss()(logits.unsqueeze(1), taught).equal(F.binary_cross_entropy_with_logits(logits, labels))


def test_odds_in_a_sampled_log_are_the_true_ones_over_the_share() -> None:
    """By Bayes' rule: clicks stay, negatives stay with probability share."""
    clicks = torch.tensor([0.01, 0.2, 0.9], dtype=torch.float64)
    among_kept = clicks / (clicks + SHARE * (1 - clicks))
    loss, logits = ClickLoss(kept_share=SHARE), torch.logit(clicks).unsqueeze(1).requires_grad_()
    loss(logits, Supervision.unweighted(among_kept.unsqueeze(0))).backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-15  # the true odds are where the loss of the sampled rows is least


CASES = [
    ("optimizer=sgd",),
    ("optimizer=rowwise_adagrad", "model=dcn"),
    ("optimizer=adagrad", "optimizer.dense.clip_norm=0.1"),
    ("optimizer=sgd", wishes("row_wise")),
    ("optimizer=adagrad", wishes("data_parallel")),
    ("optimizer=adam", "trainer.kernels=libraries"),
]


def weighted_batch(step: int, rank: int, world_size: int) -> Batch:
    batch = to_batch(*draw(step, ROWS), rank, world_size)
    weights = draw_weights(step)[rank * ROWS // world_size : (rank + 1) * ROWS // world_size]
    batch.supervision = Supervision(batch.supervision.labels, weights)
    return batch


def run_cases(runtime: Runtime) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
    """(this rank's losses, all weights) of each case."""
    found = []
    for case in CASES:
        config = compose_train(*case)
        trainable = trainable_of(config, TABLES, NUM_DENSE, runtime, kept_share=SHARE)
        stream = iter([weighted_batch(step, runtime.rank, runtime.world_size) for step in range(STEPS)])
        losses = [float(trainable.pipeline.progress(stream)[0]) for _ in range(STEPS)]
        found.append((losses, whole_tables(trainable) | dense_weights(trainable)))
    return found


def plain_run(case: tuple[str, ...]) -> tuple[list[float], PlainModel]:
    """The same by plain torch on one process, its loss in float64. Initial weights do not depend on the sharding."""
    config = compose_train(*(each for each in case if not each.startswith("sharding")))
    with start_runtime(num_threads=1) as runtime:
        plain = plain_copy(trainable_of(config, TABLES, NUM_DENSE, runtime), config.model.kind)
    sparse, dense = plain_optimizers(plain, config, TABLES)
    losses = []
    for step in range(STEPS):
        rows, ids, labels = draw(step, ROWS)
        plain.zero_grad(set_to_none=False)
        loss = by_hand(plain(rows, ids), labels, draw_weights(step), SHARE)
        loss.backward()
        if (clip := config.optimizer.dense.clip_norm) is not None:
            torch.nn.utils.clip_grad_norm_(list(plain.dense.values()), clip)
        for lr, optimizer in sparse:
            optimizer.lr = lr
            optimizer.step()
        dense.step()
        losses.append(float(loss))
    return losses, plain


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_weighted_training_matches_plain_torch(num_ranks: int) -> None:
    by_rank = on_ranks(run_cases, num_ranks)
    for number, case in enumerate(CASES):
        losses, plain = plain_run(case)
        found = torch.tensor([ranks[number][0] for ranks in by_rank]).mean(0)
        torch.testing.assert_close(found, torch.tensor(losses), rtol=2e-5, atol=2e-6)
        expected = {name.replace("/", "."): value.detach() for name, value in plain.dense.items()}
        expected |= {name: bag.weight.detach() for name, bag in plain.bags.items()}
        for name, value in expected.items():
            torch.testing.assert_close(by_rank[0][number][1][name], value, rtol=2e-4, atol=5e-6)


def run_without_weight(kind: str, runtime: Runtime) -> bool:
    """True if a batch whose weights are all 0 has left every weight as it was, and its loss is 0."""
    config = compose_train(f"optimizer={kind}", "optimizer.dense.kind=sgd")
    trainable = trainable_of(config, TABLES, NUM_DENSE, runtime)
    batches = [weighted_batch(0, 0, 1), weighted_batch(1, 0, 1)]
    batches[1].supervision = Supervision(batches[1].supervision.labels, torch.zeros(ROWS))
    stream = iter(batches)
    trainable.pipeline.progress(stream)
    before = weights_of(trainable)
    loss = trainable.pipeline.progress(stream)[0]
    after = weights_of(trainable)
    return float(loss) == 0.0 and all(before[name].equal(after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad"])
def test_a_batch_without_weight_changes_nothing(kind: str) -> None:
    """Of optimizers without momentum."""
    assert on_ranks(partial(run_without_weight, kind), 1) == [True]
