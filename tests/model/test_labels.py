"""Several labels: probabilities, loss and training equal those written out in float64, on one rank and two."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.loader.batch import Batch
from dlrm_app.loader.supervision import Supervision
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.labels import givens, joint_logits
from dlrm_app.model.loss import ClickLoss
from dlrm_app.training.setup import Trainable, build_trainable
from tests.integration.sharded_losses import dense_weights, whole_tables, wishes
from tests.model.test_parity import MODELS
from tests.model.test_weighted_loss import draw_weights
from tests.plain_model import PlainModel
from tests.plain_training import compose_train, plain_copy, plain_optimizers
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.ranks import on_ranks

ROWS, STEPS, SHARE = 32, 4, 0.1
LABELS = [
    LearntLabel("click"),
    LearntLabel("order", given="click", loss_weight=2.0),
    LearntLabel("like", loss_weight=0.5),
    LearntLabel("return", given="order"),
]
NAN = math.nan


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Of click, order, like and return, [n, 4], by multiplication in float64."""
    click, order, like, back = logits.double().sigmoid().unbind(1)
    return torch.stack([click, click * order, like, click * order * back], dim=1)


def test_a_label_given_another_is_the_product_of_probabilities() -> None:
    logits = torch.randn(500, 4, dtype=torch.float64) * 4
    found = joint_logits(logits, givens(LABELS))
    torch.testing.assert_close(found.sigmoid(), probabilities(logits), rtol=1e-12, atol=1e-15)


def test_joint_logits_are_exact_far_from_zero() -> None:
    """Where both probabilities round to 1, or their product to 0."""
    logits = torch.tensor([[40.0, 50.0], [-80.0, -30.0], [60.0, -60.0]])
    found = joint_logits(logits, (None, 0))[:, 1]
    torch.testing.assert_close(found, torch.tensor([40.0 - math.log1p(math.exp(-10)), -110.0, -60.0]))


def draw_others(seed: int) -> torch.Tensor:
    """[3, ROWS]: order, like and return, a quarter of them missing."""
    generator = torch.Generator().manual_seed(seed)
    values = (torch.rand(3, ROWS, generator=generator) < 0.4).float()
    values[torch.rand(3, ROWS, generator=generator) < 0.25] = NAN
    return values


Term = tuple[int, torch.Tensor, float, float]
"""A row, the probability of one of its labels, what the label is, and how much its cross-entropy counts."""


def terms_by_hand(
    logits: torch.Tensor, labels: torch.Tensor, others: torch.Tensor, share: float
) -> Iterator[Term]:
    """What is learnt, row by row and label by label."""
    shifted = logits.double().clone()
    shifted[:, 0] = shifted[:, 0] - math.log(share)
    p = shifted.sigmoid()
    numbers = {label.name: number for number, label in enumerate(LABELS)}
    for row in range(len(labels)):
        truth = [float(labels[row]), *others[:, row].tolist()]
        for number, label in enumerate(LABELS):
            chance, given = p[row, number], label.given
            while given is not None and math.isnan(truth[numbers[given]]):
                chance, given = chance * p[row, numbers[given]], LABELS[numbers[given]].given
            holds = given is None or truth[numbers[given]] == 1
            if holds and not math.isnan(truth[number]):
                count = share if label.name == "like" and truth[0] == 1 else 1.0
                yield row, chance, truth[number], count * label.loss_weight


def by_hand(
    logits: torch.Tensor,
    labels: torch.Tensor,
    others: torch.Tensor,
    weights: torch.Tensor,
    share: float,
    teacher: torch.Tensor | None = None,
) -> torch.Tensor:
    """Σwl / Σw; ``teacher``: logits whose probabilities are learnt in place of the labels."""
    terms = [*terms_by_hand(logits, labels, others, share)]
    truths = [torch.tensor(truth) for _, _, truth, _ in terms]
    if teacher is not None:
        truths = [chance for _, chance, _, _ in terms_by_hand(teacher.detach(), labels, others, share)]
    losses = [
        -(t * p.log() + (1 - t) * (1 - p).log()) * count * weights[row].double()
        for (row, p, _, count), t in zip(terms, truths, strict=True)
    ]
    return torch.stack(losses).sum() / weights.double().sum()


def with_branches_by_hand(kind: str, logits: torch.Tensor, *taught: Any) -> torch.Tensor:
    """The loss of a model of ``kind``, from logits of the score [B, 4], or with those of branches [1 + S, B, 4]."""
    if logits.dim() == 2:
        return by_hand(logits, *taught)
    loss = by_hand(logits[0], *taught)
    if kind != "dcnv3":
        return loss + sum(by_hand(branch, *taught, teacher=logits[0]) for branch in logits[1:])
    losses = [by_hand(branch, *taught) for branch in logits[1:]]
    return loss + sum(each * (each - loss) for each in losses if each > loss)


@pytest.mark.parametrize("share", [1.0, SHARE])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_loss_and_gradient_match_the_written_out_formula(share: float, is_weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, 4, generator=generator, requires_grad=True)
    labels, others = (torch.rand(ROWS, generator=generator) < 0.3).float(), draw_others(1)
    weights = draw_weights(2) if is_weighted else torch.ones(ROWS)
    loss = ClickLoss(labels=LABELS, kept_share=share)
    taught = Supervision(torch.cat([labels.unsqueeze(0), others]), weights, is_weighted)
    found = loss(logits, taught)
    expected = by_hand(logits, labels, others, weights, share)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = [torch.autograd.grad(each, logits)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-8)


def test_a_row_without_the_condition_says_nothing_of_the_label() -> None:
    """Loss and gradient are the same to the bit whether it holds 0 or nothing, chains included."""
    logits = torch.randn(ROWS, 4, requires_grad=True)
    labels = torch.cat([(torch.rand(1, ROWS) < 0.3).float(), draw_others(1)])
    filled = labels.clone()
    filled[1][labels[0] == 0] = 0.0
    filled[3][(filled[1] == 0)] = 0.0
    emptied = filled.clone()
    emptied[1][labels[0] == 0] = NAN
    emptied[3][(filled[1] == 0)] = NAN
    loss = ClickLoss(labels=LABELS)
    losses = [loss(logits, Supervision.unweighted(each)) for each in (filled, emptied)]
    assert losses[0].equal(losses[1])
    first, second = (torch.autograd.grad(each, logits)[0] for each in losses)
    assert first.equal(second)


@pytest.mark.parametrize("lost", [0.1, 0.5, 0.9])
def test_the_loss_is_least_at_the_truth_where_labels_are_missing_given_their_condition(lost: float) -> None:
    """Over all rows that a log can hold; an order is not known of a share of the clicked rows, nor a return of orders."""
    labels = [LearntLabel("click"), LearntLabel("order", "click"), LearntLabel("return", "order")]
    click, order, back = 0.3, 0.2, 0.4
    rows = {
        (0, 0, 0): 1 - click,
        (1, NAN, NAN): click * lost,
        (1, 0, 0): click * (1 - lost) * (1 - order),
        (1, 1, NAN): click * (1 - lost) * order * lost,
        (1, 1, 0): click * (1 - lost) * order * (1 - lost) * (1 - back),
        (1, 1, 1): click * (1 - lost) * order * (1 - lost) * back,
    }
    truth = torch.tensor([click, order, back], dtype=torch.float64).logit().requires_grad_()
    loss = ClickLoss(labels=labels)
    losses = [
        loss(truth.unsqueeze(0), Supervision.unweighted(torch.tensor(row, dtype=torch.float64).unsqueeze(1)))
        * chance
        for row, chance in rows.items()
    ]
    torch.stack(losses).sum().backward()
    assert truth.grad is not None
    assert truth.grad.abs().max() < 1e-9


def test_a_sampled_log_teaches_the_true_probabilities() -> None:
    """Over all rows that a log can hold, each as often as sampling keeps it, the loss is least at the truth."""
    labels = [LearntLabel("click"), LearntLabel("order", given="click"), LearntLabel("like")]
    click, order, like = 0.05, 0.3, {1: 0.5, 0: 0.2}  # an order given a click; a like that goes with clicks
    rows = [row for row in product((0, 1), repeat=3) if row[0] or not row[1]]
    chances = [
        (click * (order if o else 1 - order) if c else (1 - click) * SHARE) * (like[c] if k else 1 - like[c])
        for c, o, k in rows
    ]
    likes = click * like[1] + (1 - click) * like[0]
    truth = torch.tensor([click, order, likes], dtype=torch.float64).logit().requires_grad_()
    loss = ClickLoss(labels=labels, kept_share=SHARE)
    values = torch.tensor(rows, dtype=torch.float64)
    losses = torch.stack(
        [
            loss(truth.unsqueeze(0), Supervision.unweighted(row.unsqueeze(1))) * chance
            for row, chance in zip(values, chances, strict=True)
        ]
    )
    losses.sum().backward()
    assert truth.grad is not None
    assert truth.grad.abs().max() < 1e-9


PROJECTION = ("model=projection", "model.projection_branch1=[16,3]", "model.projection_branch2=[16,2]")
PARALLEL = ("model=dcn_parallel", "model.bottom_mlp=[]", "model.dcn_num_layers=2")
CASES = [
    ("optimizer=sgd",),
    ("optimizer=rowwise_adagrad", "model=dcn"),
    ("optimizer=sgd", wishes("row_wise"), *PROJECTION),
    ("optimizer=adagrad", wishes("data_parallel"), *PARALLEL),
    ("optimizer=adagrad", "model=concat", "model.bottom_mlp=[]"),
    ("optimizer=sgd", wishes("row_wise"), *MODELS["finalnet"]),
    ("optimizer=sgd", *MODELS["dcnv3"], "model.batch_norm=false"),
    ("optimizer=sgd", wishes("data_parallel"), *MODELS["qnn"]),
    ("optimizer=sgd", "model.tasks=mmoe", "model.experts.mlp=[12,6]"),
    ("optimizer=adagrad", "model=dcn", wishes("row_wise"), "model.tasks=ple", "model.experts.own=2"),
    ("optimizer=sgd", "model=concat", "model.bottom_mlp=[]", "model.tasks=ple", "model.experts.levels=2"),
]


def make(case: tuple[str, ...], runtime: Runtime) -> Trainable:
    config = compose_train(*case)
    spec = ModelSpec(config.model, TABLES, NUM_DENSE, config.trainer.seed, labels=LABELS)
    return build_trainable(config, spec, runtime, kept_share=SHARE)


def labelled_batch(step: int, rank: int, world_size: int) -> Batch:
    batch = to_batch(*draw(step, ROWS), rank, world_size)
    rows = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    labels = torch.cat([batch.supervision.labels, draw_others(step)[:, rows]])
    batch.supervision = Supervision(labels, draw_weights(step)[rows])
    return batch


def run_case(case: tuple[str, ...], runtime: Runtime) -> tuple[list[float], dict[str, torch.Tensor]]:
    """(this rank's losses, all weights)."""
    trainable = make(case, runtime)
    stream = iter([labelled_batch(step, runtime.rank, runtime.world_size) for step in range(STEPS)])
    losses = [float(trainable.pipeline.progress(stream)[0]) for _ in range(STEPS)]
    return losses, whole_tables(trainable) | dense_weights(trainable)


def run_cases(runtime: Runtime) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
    return [run_case(case, runtime) for case in CASES]


def logits_by_hand(plain: PlainModel, rows: torch.Tensor, ids: dict[str, list[list[int]]]) -> torch.Tensor:
    """[B, 4], or with those of branches [1 + S, B, 4]: the plain model once for each label's top."""
    each = []
    for number in range(len(LABELS)):
        plain.over_arch = f"over_arch/{number}"
        each.append(plain(rows, ids).t())
    return torch.stack(each, dim=-1)


def plain_run(case: tuple[str, ...]) -> tuple[list[float], PlainModel]:
    case = tuple(each for each in case if not each.startswith("sharding"))
    config = compose_train(*case)
    with start_runtime(num_threads=1) as runtime:
        plain = plain_copy(make(case, runtime), config.model.kind)
    sparse, dense = plain_optimizers(plain, config, TABLES)
    losses = []
    for step in range(STEPS):
        rows, ids, labels = draw(step, ROWS)
        plain.zero_grad(set_to_none=False)
        logits = logits_by_hand(plain, rows, ids)
        taught = labels, draw_others(step), draw_weights(step), SHARE
        loss = with_branches_by_hand(config.model.kind, logits, *taught)
        loss.backward()
        for lr, optimizer in sparse:
            optimizer.lr = lr
            optimizer.step()
        dense.step()
        losses.append(float(loss))
    return losses, plain


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_training_matches_plain_torch(num_ranks: int) -> None:
    for case, *by_rank in zip(CASES, *on_ranks(run_cases, num_ranks), strict=True):
        losses, plain = plain_run(case)
        found = torch.tensor([each for each, _ in by_rank]).mean(0)
        of_losses = partial(of_case, case, "losses")
        torch.testing.assert_close(found, torch.tensor(losses), rtol=2e-5, atol=2e-6, msg=of_losses)
        expected = {name.replace("/", "."): value.detach() for name, value in plain.dense.items()}
        expected |= {name: bag.weight.detach() for name, bag in plain.bags.items()}
        for name, value in expected.items():
            of_weights = partial(of_case, case, name)
            torch.testing.assert_close(by_rank[0][1][name], value, rtol=2e-4, atol=5e-6, msg=of_weights)


def of_case(case: tuple[str, ...], name: str, message: str) -> str:
    return f"{' '.join(case)}: {name}: {message}"


def test_each_label_has_its_own_top_and_one_label_none() -> None:
    with start_runtime(num_threads=1) as runtime:
        several = dense_weights(make(CASES[0], runtime))
    tops = [{n: w for n, w in several.items() if n.startswith(f"over_arch.{k}.")} for k in range(4)]
    shapes = [[w.shape for w in top.values()] for top in tops]
    assert all(each == shapes[0] for each in shapes)
    first, second = (next(iter(top.values())) for top in tops[:2])
    assert not first.equal(second)


def test_an_ensemble_averages_the_probabilities_of_every_label() -> None:
    config = compose_train("model.ensemble_size=2")
    spec = ModelSpec(config.model, TABLES, NUM_DENSE, 0, labels=LABELS)
    with start_runtime(num_threads=1) as runtime:
        trainable = build_trainable(config, spec, runtime)
        task = trainable.model.module
        batch = labelled_batch(0, 0, 1)
        task.train()
        twice = labelled_batch(0, 0, 1)
        with torch.no_grad():
            embedded = task.model.sparse_arch(batch.sparse_features).unflatten(2, (2, -1))
            by_model = [
                model.train()(batch.dense_features, embedded[:, :, k])
                for k, model in enumerate(task.model.models)
            ]
            task.eval()
            found = task(twice)[1].logits.double().sigmoid()
    mean = torch.stack([probabilities(each) for each in by_model]).mean(0)
    torch.testing.assert_close(found, mean, rtol=1e-5, atol=1e-7)


def test_one_label_in_evaluation_is_the_main_one() -> None:
    logits, labels = torch.randn(8, 4), torch.ones(8)
    loss = ClickLoss(labels=LABELS).eval()
    assert loss(logits, Supervision.unweighted(labels.unsqueeze(0))).equal(
        F.binary_cross_entropy_with_logits(logits[:, 0], labels)
    )
