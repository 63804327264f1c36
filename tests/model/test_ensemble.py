"""The models of an ensemble learn like as many plain models, each on its own rows; evaluation averages them."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch
from torch import nn

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.model.ensemble import logit_of_mean
from dlrm_app.model.problems import model_problems
from dlrm_app.training.setup import Trainable
from tests.model.test_parity import MODELS
from tests.plain_branches import training_loss
from tests.plain_model import PlainModel
from tests.plain_optimizers import DENSE, RowByRow
from tests.plain_training import BATCH, NUM_STEPS, compose_train, run_sharded, weights_of
from tests.random_batches import NUM_DENSE, TABLES, Ids, draw, to_batch
from tests.refusals import refused
from tests.trainable import trainable_of

DIM = TABLES[0].dim
COUNT = 2
Step = tuple[torch.Tensor, Ids, torch.Tensor]


def plain_model(weights: dict[str, torch.Tensor], kind: str, model: int) -> PlainModel:
    """A plain model with the initial weights of one model, in float64: Adagrad divides by sums of squares near zero."""
    share = DIM // COUNT
    prefix = f"models.{model}."
    dense = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    plain = PlainModel(kind, [replace(table, dim=share) for table in TABLES], dense)
    for table in TABLES:
        own = weights[f"bags.{table.name}.weight"][:, model * share : (model + 1) * share]
        plain.bags[table.name].weight.data.copy_(own)
    return plain.double()


def plain_models(trainable: Trainable, kind: str) -> list[PlainModel]:
    weights = weights_of(trainable)
    return [plain_model(weights, kind, model) for model in range(COUNT)]


def train_plain(models: list[PlainModel], config: TrainConfig, steps: list[list[Step]]) -> torch.Tensor:
    """Losses of steps whose mean over the models each of them follows; ``steps[t][k]`` is model k's batch."""
    settings = config.optimizer
    tables = [[bag.weight for bag in plain.bags.values()] for plain in models]
    sparse = [RowByRow(weights, settings.sparse, stored_as=torch.float64) for weights in tables]
    parameters: list[nn.Parameter] = [p for plain in models for p in plain.dense.values()]
    dense = DENSE[settings.dense.kind](parameters, settings.dense)
    losses = []
    for step in steps:
        loss = torch.stack(
            [
                training_loss(plain.kind, plain(rows.double(), ids), labels.double())
                for plain, (rows, ids, labels) in zip(models, step, strict=True)
            ]
        ).mean()
        for plain in models:
            plain.zero_grad(set_to_none=False)
        loss.backward()
        for optimizer in (*sparse, dense):
            optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def beside(parts: list[Step]) -> Step:
    """The models' batches as one, the first model's rows first."""
    ids = {feature: [bag for _, ids, _ in parts for bag in ids[feature]] for feature in parts[0][1]}
    return torch.cat([rows for rows, _, _ in parts]), ids, torch.cat([labels for _, _, labels in parts])


@pytest.mark.parametrize(("kind", "optimizer"), [*zip(MODELS, cycle(["sgd", "adagrad"]))])
def test_ten_steps_equal_plain_models_apart(kind: str, optimizer: str) -> None:
    """Same losses at every step, same weights at the end, and then the mean of their probabilities in evaluation."""
    settings = [f"optimizer={optimizer}", *MODELS[kind], f"model.ensemble_size={COUNT}"]
    # with Adagrad's usual eps a step jumps where a gradient passes 0, so its rounding would decide about whole steps
    config = compose_train(*settings, "optimizer.sparse.eps=1e-3")
    steps = [[draw(COUNT * number + model, BATCH) for model in range(COUNT)] for number in range(NUM_STEPS)]
    rows, ids, labels = draw(99, 50)
    with start_runtime(num_threads=1) as runtime:
        trainable = trainable_of(config, TABLES, NUM_DENSE, runtime)
        models = plain_models(trainable, kind)
        losses = run_sharded(trainable, config, [beside(step) for step in steps])
        weights = weights_of(trainable)
        trainable.pipeline.detach()
        trainable.model.eval()
        logits = trainable.model(to_batch(rows, ids, labels))[1].logits.flatten()
    torch.testing.assert_close(losses.double(), train_plain(models, config, steps), rtol=1e-5, atol=1e-6)
    for number, plain in enumerate(models):
        for table in TABLES:
            found = plain_model(weights, kind, number).bags[table.name].weight
            torch.testing.assert_close(found, plain.bags[table.name].weight, rtol=1e-4, atol=2e-6)
        for name, value in plain.dense.items():
            found = weights[f"models.{number}.{name.replace('/', '.')}"]
            torch.testing.assert_close(found.double(), value.data, rtol=1e-4, atol=2e-6)
    expected = torch.stack([plain.eval()(rows.double(), ids).sigmoid() for plain in models]).mean(0)
    torch.testing.assert_close(logits.double().sigmoid(), expected.detach(), rtol=1e-4, atol=2e-6)


def test_models_that_are_calibrated_are_so_together() -> None:
    """Their mean predicts as many clicks as they do one by one, which the mean of their logits does not."""
    logits = torch.randn(8, 10_000, generator=torch.Generator().manual_seed(0)) - 3.5
    predicted = logit_of_mean(logits).sigmoid().mean()
    torch.testing.assert_close(predicted, logits.sigmoid().mean(), rtol=1e-5, atol=0)
    assert logits.mean(0).sigmoid().mean() < 0.8 * predicted


def test_the_mean_is_exact_far_from_zero() -> None:
    """Of [z, z] it is z, where the probability itself is 0 or 1 in float32; and one model is enough to be likely."""
    far = torch.tensor([-200.0, -90.0, 0.0, 30.0, 200.0])
    torch.testing.assert_close(logit_of_mean(torch.stack([far, far])), far)
    torch.testing.assert_close(logit_of_mean(torch.tensor([-200.0, 200.0])), torch.tensor(0.0))


def test_models_begin_with_weights_of_their_own() -> None:
    """Another model, other initial weights: or they would stay the same model but for their rows."""
    config = compose_train("model.ensemble_size=2")
    with start_runtime(num_threads=1) as runtime:
        weights = weights_of(trainable_of(config, TABLES, NUM_DENSE, runtime))
    for name in [name for name in weights if name.startswith("models.0.") and name.endswith("weight")]:
        assert not torch.equal(weights[name], weights[name.replace("models.0.", "models.1.")])


def test_a_width_that_the_models_do_not_divide_is_refused() -> None:
    config = compose_train("model.ensemble_size=3")
    with refused(ConfigError, "model.ensemble_size=3", "must divide the tables' width 8"):
        build_model(ModelSpec(config.model, TABLES, NUM_DENSE), torch.device("cpu"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.ensemble_size=0"], ["model.ensemble_size must be at least 1"]),
        (
            ["model=concat", "model.bottom_mlp=[]", "model.ensemble_size=2"],
            ["model.ensemble_size=2", "one width", "model.ensemble_size=1"],
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_if(model_problems(compose_train(*overrides).model))
    for word in words:
        assert word in str(caught.value)
