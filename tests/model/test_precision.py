"""bf16 and fp16 where they work, and a refusal where they do not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.model.loss import set_tf32
from dlrm_app.sharding.constraints import table_problems
from tests.composed import compose_config
from tests.model.test_parity import MODELS
from tests.plain_training import BATCH, NUM_STEPS, compose_train, plain_copy, run_sharded, train_both
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.refusals import is_like
from tests.trainable import trainable_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_bf16_trains_like_plain_torch_in_bf16() -> None:
    """Losses agree to bf16's 8 bits, differ from fp32's, and every weight stays fp32."""
    config = compose_train("trainer.precision=bf16")
    losses, plain_losses, weights, _ = train_both(
        config, forward_in=lambda: torch.autocast("cpu", torch.bfloat16)
    )
    torch.testing.assert_close(losses, plain_losses, rtol=2e-3, atol=0)
    assert not torch.equal(losses, train_both(compose_train())[0])
    assert losses.dtype == torch.float32
    assert {value.dtype for value in weights.values()} == {torch.float32}


@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_in_bf16_stays_near_its_training_in_fp32(kind: str) -> None:
    """The losses of ten steps differ, by what eight bits can make."""
    bf16, fp32 = (
        losses_of(compose_train(*MODELS[kind], f"trainer.precision={name}")) for name in ("bf16", "fp32")
    )
    assert not torch.equal(bf16, fp32)
    torch.testing.assert_close(bf16, fp32, rtol=0, atol=2**-7)


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_compiled_has_the_losses_of_its_eager_training(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.compiler.reset()
    compiled, eager = (
        losses_of(compose_train(*MODELS[kind], f"trainer.compile={value}")) for value in ("true", "false")
    )
    assert "is not compiled" not in caplog.text
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)


def losses_of(config: TrainConfig) -> torch.Tensor:
    """Of ten steps."""
    with start_runtime(num_threads=1) as runtime:
        trainable = trainable_of(config, TABLES, NUM_DENSE, runtime)
        return run_sharded(trainable, config, [draw(seed, BATCH, TABLES) for seed in range(NUM_STEPS)])


def test_a_training_within_autocast_is_the_same() -> None:
    """Casts of weights that torch keeps until autocast ends would be those of the first step."""
    for words in ([], ["trainer.precision=bf16"]):
        losses = train_both(compose_train(*words))[0]
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(train_both(compose_train(*words))[0], losses)
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_cache_enabled()


def test_bf16_training_evaluates_in_fp32() -> None:
    config = compose_train("trainer.precision=bf16")
    with start_runtime(num_threads=1) as runtime:
        trainable = trainable_of(config, TABLES, NUM_DENSE, runtime)
        plain = plain_copy(trainable)
        dense, ids, labels = draw(0, 64)
        trainable.model.eval()
        with torch.no_grad():
            loss, output = trainable.model(to_batch(dense, ids, labels))
            expected = plain(dense, ids)
    torch.testing.assert_close(output.logits.flatten(), expected)
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad"])
def test_fp16_tables_train_with_rounding_to_nearest(kind: str) -> None:
    """As plain torch does when it rounds every touched row to fp16 after each step."""
    tables = [replace(table, data_type="fp16") for table in TABLES]
    losses, plain_losses, weights, plain = train_both(compose_train(f"optimizer={kind}"), tables)
    torch.testing.assert_close(losses, plain_losses, rtol=1e-3, atol=0)
    for table in tables:
        found, expected = weights[f"bags.{table.name}.weight"], plain.bags[table.name].weight.data
        assert found.dtype == torch.float16
        # two neighbours of fp16 near the largest weights: fbgemm may round twice where torch rounds once
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=2.5e-4)


@pytest.mark.parametrize(
    ("data_type", "settings", "key", "rule"),
    [
        ("bf16", SparseSettings("sgd", 0.1), "data_type", "bf16 is not trained by fbgemm..."),
        ("fp16", SparseSettings("adam", 0.1), "data_type", "fp16 needs an optimizer inside..."),
        ("fp16", SparseSettings("rowwise_adagrad", 0.1, weight_decay=1e-5), "data_type", "fp16 needs..."),
        (
            "fp16",
            SparseSettings("sgd", 0.1, stochastic_rounding=True),
            "stochastic_rounding",
            "exists on CUDA only...",
        ),
    ],
)
def test_a_type_that_cannot_be_trained_is_refused(
    data_type: str, settings: SparseSettings, key: str, rule: str
) -> None:
    (problem,) = table_problems([replace(TABLES[0], data_type=data_type)], settings, ShardingConfig(), "cpu")
    assert is_like(problem, f"table shared: {key}", rule), problem


def test_fp16_is_accepted_where_it_works() -> None:
    table = replace(TABLES[0], data_type="fp16")
    rounding = SparseSettings("adam", 0.1, stochastic_rounding=True)
    assert table_problems([table], SparseSettings("sgd", 0.1), ShardingConfig(), "cpu") == []
    assert table_problems([table], rounding, ShardingConfig(), "cuda") == []


@pytest.fixture
def tf32_as_before() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tf32_as_before")
def test_tf32_is_set_for_cuda_alone() -> None:
    set_tf32(True, CUDA)
    assert torch.backends.cuda.matmul.allow_tf32
    set_tf32(False, CUDA)
    assert not torch.backends.cuda.matmul.allow_tf32
    set_tf32(True, CPU)
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    ("recipes", "tf32"),
    [
        (["mlperf_dlrm_v1", "mlperf_dcnv2"], True),  # as the published runs
        (["kaggle_small", "small_clicks", "linear_decay"], True),  # those that experiment=auto takes
        (["null", "kaggle_paper", "kaggle_full", "finalnet_criteo_x4"], False),
    ],
)
def test_recipes_choose_tf32_unless_they_reproduce_fp32(recipes: list[str], tf32: bool) -> None:
    for recipe in recipes:
        config = compose_config("train", TrainConfig, ["data.path=x", f"experiment={recipe}"])
        assert config.trainer.tf32 == tf32, recipe
