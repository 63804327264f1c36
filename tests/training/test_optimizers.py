"""Every optimizer setting does what plain torch does by hand, or is refused before work starts."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dlrm_app.config.optimizer import DENSE_STATES, DenseSettings, SparseSettings
from dlrm_app.errors import ConfigError
from dlrm_app.model.regularization import SyncedBatchNorm
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.training.optimizers import DenseEma, TouchedRows
from tests.plain_model import PlainModel
from tests.plain_optimizers import DENSE
from tests.plain_training import assert_trains_like_plain, compose_train, train_both
from tests.random_batches import TABLES
from tests.refusals import refused


@pytest.mark.parametrize("kind", SPARSE_OPTIMIZERS)
def test_weight_decay_shrinks_the_touched_rows(kind: str) -> None:
    """Shared and unshared tables alike, as fbgemm's formulas say, though its CPU kernels leave it out."""
    config = compose_train(f"optimizer={kind}", "optimizer.sparse.weight_decay=0.3")
    assert_trains_like_plain(config)


@pytest.mark.parametrize(
    ("kind", "mode"), [("adagrad", "decoupled"), ("adam", "coupled"), ("partial_rowwise_lamb", "coupled")]
)
def test_weight_decay_is_coupled_or_decoupled_as_asked(kind: str, mode: str) -> None:
    decay = "optimizer.sparse.weight_decay=0.3"
    assert_trains_like_plain(
        compose_train(f"optimizer={kind}", decay, f"optimizer.sparse.weight_decay_mode={mode}")
    )


@pytest.mark.parametrize(("kind", "mode"), [("rowwise_adagrad", None), ("lamb", "coupled")])
def test_all_rows_may_be_updated(kind: str, mode: str | None) -> None:
    config = compose_train(
        f"optimizer={kind}",
        "optimizer.sparse.updated_rows=all",
        "optimizer.sparse.weight_decay=0.3",
        f"optimizer.sparse.weight_decay_mode={mode or 'null'}",
    )
    assert_trains_like_plain(config, TABLES[:2])


@pytest.mark.parametrize(
    ("kind", "mode", "reference"),
    [
        ("sgd", None, "sgd"),
        ("adagrad", None, "adagrad"),
        ("adam", "coupled", "adam"),
        ("adam", "decoupled", "adamw"),
    ],
)
def test_l2_of_whole_tables_is_torchs(kind: str, mode: str | None, reference: str) -> None:
    """An nn.EmbeddingBag with a dense gradient under torch's optimizer, whose weight_decay every row feels."""
    settings = SparseSettings(kind, lr=0.1, weight_decay=0.05, weight_decay_mode=mode, updated_rows="all")
    ours, theirs = (nn.EmbeddingBag(30, 4, mode="sum") for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    never_read = ours.weight.detach()[20:].clone()
    optimizer = TouchedRows([ours.weight], settings)
    torchs = DENSE[reference]([theirs.weight], DenseSettings(reference, lr=0.1, weight_decay=0.05))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(10, (8, 2), generator=generator)  # most rows are never read
        target = torch.randn(8, 4, generator=generator)
        for bag, stepping in ((ours, optimizer), (theirs, torchs)):
            stepping.zero_grad()
            (bag(ids) - target).square().mean().backward()
            stepping.step()
        torch.testing.assert_close(ours.weight, theirs.weight)
    assert (ours.weight[20:].norm(dim=1) < never_read.norm(dim=1)).all()


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (
            "rowwise_adagrad",
            [
                {"kind": "adagrad", "lr": 0.5},
                {"kind": "adam", "lr": 0.01, "weight_decay": 0.1},
                {"lr": 0.3, "eps": 0.001},
            ],
        ),
        ("sgd", [{"lr": 1.0}, {}, {"lr": 2.0}]),
    ],
)
def test_tables_may_differ_in_kind_rate_and_decay(kind: str, own: list[dict[str, object]]) -> None:
    tables = [replace(table, optimizer=settings) for table, settings in zip(TABLES, own, strict=True)]
    assert_trains_like_plain(compose_train(f"optimizer={kind}"), tables)


@pytest.mark.parametrize("kind", DENSE_STATES)
def test_dense_optimizers_are_torchs(kind: str) -> None:
    extra = ["optimizer.dense.momentum=0.9"] if kind == "sgd" else []
    assert_trains_like_plain(
        compose_train(f"optimizer.dense.kind={kind}", "optimizer.dense.weight_decay=0.1", *extra)
    )


def test_the_dense_gradient_is_clipped_by_its_global_norm() -> None:
    config = compose_train(
        "optimizer.dense.kind=sgd", "optimizer.dense.lr=1", "optimizer.dense.clip_norm=0.05"
    )
    assert_trains_like_plain(config)
    loose = replace(
        config, optimizer=replace(config.optimizer, dense=replace(config.optimizer.dense, clip_norm=9))
    )
    assert not torch.allclose(train_both(config)[0], train_both(loose)[0], rtol=1e-4)  # it did bite


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad"])
def test_max_gradient_bounds_each_gradient_of_a_pooled_vector(kind: str) -> None:
    """Element by element, before the gradients of a row are added up."""

    def clamp_pooled(plain: PlainModel) -> None:
        for bag in plain.bags.values():
            bag.register_forward_hook(lambda _module, _input, output: _clamped(output))

    config = compose_train(f"optimizer={kind}", "optimizer.sparse.max_gradient=0.002")
    assert_trains_like_plain(config, change_plain=clamp_pooled)


def _clamped(pooled: torch.Tensor) -> torch.Tensor:
    pooled.register_hook(lambda gradient: gradient.clamp(-0.002, 0.002))
    return pooled


def test_lazy_adam_is_torchs_sparse_adam() -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 40).reshape(10, 4)) for _ in range(2))
    optimizer = TouchedRows([ours], SparseSettings("adam", lr=0.1, eps=0.0))
    reference = torch.optim.SparseAdam([theirs], lr=0.1, eps=1e-30)
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        gradient = torch.zeros(10, 4)
        gradient[step % 10 :: 3] = torch.randn(4, generator=generator) + 2
        ours.grad, theirs.grad = gradient, gradient.to_sparse(1)
        optimizer.step()
        reference.step()
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("optimizer.dense.kind=lamb", "must be one of sgd, adagrad, adam, adamw"),
        ("optimizer.dense.momentum=0.9", "is only for kind=sgd"),
        ("optimizer.dense.clip_norm=0", "must be above 0"),
        ("optimizer.sparse.max_gradient=-1", "must be above 0"),
        ("optimizer.sparse.lr=nan", "must be above 0"),
    ],
)
def test_a_setting_without_effect_or_sense_is_refused(override: str, rule: str) -> None:
    key, _, value = override.partition("=")
    with refused(ConfigError, key, rule, value=float(value) if key != "optimizer.dense.kind" else value):
        compose_train(override)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict({"t": nn.EmbeddingBag(3, 2)})
        self.over_arch = nn.Sequential(nn.Linear(2, 4), SyncedBatchNorm(4), nn.Linear(4, 1))


def values(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def test_the_average_equals_torchs_with_current_running_moments() -> None:
    torch.manual_seed(0)
    model = Model()
    ours = DenseEma(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 6):
        optimizer.zero_grad()
        model.over_arch(torch.randn(8, 2)).square().mean().backward()
        optimizer.step()
        ours.update(step)
        theirs.update_parameters(model)
    averages = {name.removeprefix("ema/"): value for name, value in ours.tensors().items()}
    expected = {name: value for name, value in theirs.module.state_dict().items() if "bags" not in name}
    assert averages.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(averages[name], value), name


def test_the_models_own_weights_are_restored() -> None:
    model = Model()
    ema = DenseEma(model, 0.5)
    ema.update(1)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 2.0)
    ema.update(2)
    before, average = values(model.state_dict()), values(ema.tensors())
    with ema.in_place():
        for name, value in average.items():
            assert torch.equal(model.state_dict()[name.removeprefix("ema/")], value)
        assert not torch.equal(model.over_arch[0].weight, before["over_arch.0.weight"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, average[name]) for name, value in ema.tensors().items())


@pytest.mark.parametrize("decay", [0, 1, "nan"])
def test_an_invalid_decay_is_refused(decay: object) -> None:
    with refused(ConfigError, "optimizer.dense.ema_decay", "must be above 0 and below 1"):
        compose_train(f"optimizer.dense.ema_decay={decay}")
