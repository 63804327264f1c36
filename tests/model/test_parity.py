"""The sharded model on one rank and a model in plain torch agree, forward and after optimizer steps."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.config.compose import compose_config
from dlrm_app.config.optimizer import SPARSE_OPTIMIZERS
from dlrm_app.config.train import TrainConfig
from dlrm_app.runtime import start_runtime
from dlrm_app.training.build import Trainable, build_trainable
from tests.plain_model import PlainModel
from tests.plain_optimizers import DENSE, RowByRow
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch

MODELS = {
    "dlrm": ["model.bottom_mlp=[16]", "model.top_mlp=[16]"],
    "dcn": ["model=dcn", "model.bottom_mlp=[16]", "model.top_mlp=[16]", "model.dcn_low_rank_dim=3"],
    "projection": [
        "model=projection",
        "model.bottom_mlp=[16]",
        "model.top_mlp=[16]",
        "model.projection_branch1=[16,3]",
        "model.projection_branch2=[16,2]",
    ],
}
EVERYWHERE = ("sgd", "adagrad", "rowwise_adagrad", "adam")
CASES = [(kind, optimizer) for kind in MODELS for optimizer in EVERYWHERE]
CASES += [("dlrm", kind) for kind in SPARSE_OPTIMIZERS if kind not in EVERYWHERE]


def weights_of(trainable: Trainable) -> dict[str, torch.Tensor]:
    """Every weight of an unsplit model by its name, tables under their own names."""
    weights = {}
    for key, value in trainable.model.state_dict().items():
        name = key.removeprefix("model.")
        if "embedding_bags" in name:
            (shard,) = value.local_shards()
            weights[f"bags.{name.split('.')[-2]}.weight"] = shard.tensor.detach().clone()
        else:
            weights[name] = value.detach().clone()
    return weights


def plain_copy(kind: str, trainable: Trainable) -> PlainModel:
    weights = weights_of(trainable)
    dense = {name: value for name, value in weights.items() if not name.startswith("bags.")}
    plain = PlainModel(kind, TABLES, dense)
    for table in TABLES:
        plain.bags[table.name].weight.data.copy_(weights[f"bags.{table.name}.weight"])
    return plain


@pytest.mark.parametrize(("kind", "optimizer"), CASES)
def test_ten_steps_equal_plain_torch(kind: str, optimizer: str) -> None:
    """Same losses at every step and same weights at the end, for every architecture and every sparse optimizer."""
    config = compose_config(
        "train", TrainConfig, ["data.path=unused", f"optimizer={optimizer}", *MODELS[kind]]
    )
    with start_runtime(num_threads=1) as runtime:
        trainable = build_trainable(config, TABLES, NUM_DENSE, runtime)
        plain = plain_copy(kind, trainable)
        steps = [draw(seed, 32) for seed in range(10)]
        sharded_losses = run_sharded(trainable, steps)
        plain_losses = run_plain(plain, config, steps)
        torch.testing.assert_close(sharded_losses, plain_losses, rtol=1e-5, atol=1e-6)
        found = weights_of(trainable)
    for table in TABLES:
        torch.testing.assert_close(
            found[f"bags.{table.name}.weight"], plain.bags[table.name].weight.data, rtol=1e-4, atol=2e-6
        )
    for name, value in plain.dense.items():
        torch.testing.assert_close(found[name.replace("/", ".")], value.data, rtol=1e-4, atol=2e-6)


def run_sharded(trainable: Trainable, steps: list[Any]) -> torch.Tensor:
    stream = iter([to_batch(*step) for step in steps])
    return torch.stack([trainable.pipeline.progress(stream)[0] for _ in steps])


def run_plain(plain: PlainModel, config: TrainConfig, steps: list[Any]) -> torch.Tensor:
    tables: list[nn.Parameter] = [bag.weight for bag in plain.bags.values()]
    sparse = RowByRow(tables, config.optimizer.sparse)
    dense = DENSE[config.optimizer.dense.kind](list(plain.dense.values()), config.optimizer.dense)
    losses = []
    for rows, ids, labels in steps:
        plain.zero_grad(set_to_none=False)
        loss = F.binary_cross_entropy_with_logits(plain(rows, ids), labels)
        loss.backward()
        sparse.step()
        dense.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def test_the_pooled_lookups_equal_embedding_bags() -> None:
    """Sum and mean pooling, empty bags, and a table shared by two features."""
    config = compose_config("train", TrainConfig, ["data.path=unused"])
    with start_runtime(num_threads=1) as runtime:
        trainable = build_trainable(config, TABLES, NUM_DENSE, runtime)
        dense, ids, labels = draw(0, 64)
        bags = trainable.model.module.model.sparse_arch.embedding_bag_collection
        found = bags(to_batch(dense, ids, labels).sparse_features).to_dict()
        expected = plain_copy("dlrm", trainable).pooled(ids)
    for feature, value in zip(trainable.features, expected, strict=True):
        torch.testing.assert_close(found[feature], value.data)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    """Same seed, same weights; another seed, others; and each table within its distribution's bound."""

    def fresh(seed: int) -> dict[str, torch.Tensor]:
        config = compose_config("train", TrainConfig, ["data.path=unused", f"trainer.seed={seed}"])
        with start_runtime(num_threads=1) as runtime:
            return weights_of(build_trainable(config, TABLES, NUM_DENSE, runtime))

    first, again, other = fresh(1), fresh(1), fresh(2)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name]) or "bias" in name
    shared = first["bags.shared.weight"]
    assert shared.abs().max() <= 0.1
    assert shared.abs().max() > 0.095
    assert first["bags.long.weight"].std().item() == pytest.approx(8**-0.5, rel=0.02)
