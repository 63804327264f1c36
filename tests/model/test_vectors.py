"""Models with vectors that are not trained take the steps of plain torch: a frozen EmbeddingBag, then a Linear."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import ConfigError
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.runs.checkpoint.tensors import collect_weights
from dlrm_app.tables.table import Attention, Table
from dlrm_app.training.setup import build_trainable
from tests.model.test_parity import MODELS
from tests.plain_training import compose_train, run_plain, run_sharded, weights_of
from tests.plain_vectors import PlainWithVectors, frozen_table, plain_with_vectors
from tests.random_batches import NUM_DENSE, Ids, draw, to_batch
from tests.refusals import refused

SIZES = {"query": 7, "image": 12}
STEPS, BATCH = 20, 32
KINDS = {**MODELS, "concat": ["model=concat", "model.bottom_mlp=[]", "model.top_mlp=[16]"]}
ADAGRAD = ["optimizer=adagrad", "optimizer.dense.kind=adagrad", "optimizer.dense.eps=1e-4"]
"""The first step of Adagrad is lr · g / (|g| + eps), so a gradient of about eps (1e-8, where others are 1e-3) multiplies its
rounding by up to lr / eps = 500,000: in dcnv3 one of 7.8e-9 moves a weight by 4e-6. In float64, plain torch gives a value
between ours and its own in float32. With this eps it is multiplied by 50.
"""
CPU = torch.device("cpu")


def with_rows(
    step: tuple[torch.Tensor, Ids, torch.Tensor], seed: int
) -> tuple[torch.Tensor, Ids, torch.Tensor]:
    """``step`` with a vector of each column behind the dense features; some rows lack theirs."""
    dense, ids, labels = step
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(dense), sum(SIZES.values()), generator=generator)
    vectors[::5] = 0
    return torch.cat([dense, vectors], dim=1), ids, labels


def assert_like_plain(config: TrainConfig, tables: Sequence[Table], sizes: dict[str, int]) -> None:
    steps = [draw(seed, BATCH, tables) for seed in range(STEPS)]
    steps = [with_rows(step, seed) for seed, step in enumerate(steps)] if sizes else steps
    spec = ModelSpec(config.model, tables, NUM_DENSE, config.trainer.seed, vectors=sizes)
    with start_runtime(num_threads=1) as runtime:
        trainable = build_trainable(config, spec, runtime)
        plain = plain_with_vectors(trainable)
        before = weights_of(trainable)
        losses = run_sharded(trainable, config, steps)
        after = weights_of(trainable)
    trained = [table for table in tables if not table.is_frozen]
    torch.testing.assert_close(losses, run_plain(plain, config, steps, trained), rtol=1e-5, atol=1e-6)
    for table in tables:
        name = f"bags.{table.name}.weight"
        if table.is_frozen:
            assert torch.equal(after[name], before[name])
        else:
            torch.testing.assert_close(after[name], plain.bags[table.name].weight.data, rtol=1e-4, atol=2e-6)
    for name, value in plain.dense.items():
        torch.testing.assert_close(after[name.replace("/", ".")], value.data, rtol=1e-4, atol=2e-6)


TRAINED = [Table("users", 100, 8, ("f1",)), Table("seen", 60, 8, ("f3_a",), pooling="mean", init="normal")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_reads_both_kinds_of_vectors(tmp_path: Path, kind: str) -> None:
    """20 steps of tables, a frozen table of lists and one values, and two vectors of each row."""
    frozen = frozen_table(tmp_path, "text", 50, 10, ("f3_text", "f4"), pooling="mean")
    config = compose_train(*ADAGRAD, *KINDS[kind])
    assert_like_plain(config, [TRAINED[0], frozen, TRAINED[1]], SIZES)


@pytest.mark.parametrize("width", [768, 1536, 3072])
def test_wide_vectors_train_like_plain_torch(tmp_path: Path, width: int) -> None:
    frozen = frozen_table(tmp_path, "text", 40, width, ("f3_text", "f4"), "fp16")
    config = compose_train("optimizer=rowwise_adagrad", "model.vectors.norm=null", "optimizer.dense.lr=1e-4")
    assert_like_plain(config, [*TRAINED, frozen], {})


@pytest.mark.parametrize("kernels", ["compiled", "libraries"])
def test_vectors_stand_alone_and_beside_attention(tmp_path: Path, kernels: str) -> None:
    frozen = frozen_table(tmp_path, "text", 50, 10, ("f3_text",))
    shown = Table("shown", 60, 8, ("f3_b", "f2"), pooling=Attention("f2", (6,)), init="normal")
    config = compose_train("optimizer=sgd", "optimizer.dense.kind=sgd", f"trainer.kernels={kernels}")
    assert_like_plain(config, [shown, frozen], {})
    alone = compose_train("optimizer=sgd", "model.vectors.project=8", f"trainer.kernels={kernels}")
    assert_like_plain(alone, [frozen], SIZES)


def test_an_ensemble_shares_a_frozen_table(tmp_path: Path) -> None:
    """Each model has columns of its own of the trained tables and of the projections, and all see the same vectors."""
    tables = [TRAINED[0], frozen_table(tmp_path, "text", 50, 10, ("f4",))]
    config = compose_train("model.ensemble_size=2")
    step = with_rows(draw(1, BATCH, tables), 1)
    with start_runtime(num_threads=1) as runtime:
        trainable = build_trainable(
            config, ModelSpec(config.model, tables, NUM_DENSE, vectors=SIZES), runtime
        )
        weights, model = weights_of(trainable), trainable.model.module.eval()
        _, output = model(to_batch(*step))
    logits = []
    for number in range(2):
        columns = slice(4 * number, 4 * number + 4)
        own = {
            name.removeprefix(f"models.{number}."): value[columns] if "projections" in name else value
            for name, value in weights.items()
            if name.startswith((f"models.{number}.", "sparse_arch"))
        }
        parts = [replace(tables[0], dim=4), tables[1]]
        plain = PlainWithVectors("dlrm", parts, own, SIZES, "l2")
        plain.bags["users"].weight.data.copy_(weights["bags.users.weight"][:, columns])
        plain.bags["text"].weight.data.copy_(weights["bags.text.weight"])
        logits.append(plain(*step[:2]))
    mean = torch.stack(logits).sigmoid().mean(0)
    torch.testing.assert_close(output.logits.flatten().sigmoid(), mean, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_has_no_row_of_a_frozen_table(tmp_path: Path) -> None:
    frozen = frozen_table(tmp_path, "text", 50, 8, ("f4",))
    config = compose_train()
    model = build_model(ModelSpec(config.model, [TRAINED[0], frozen], NUM_DENSE), CPU)
    names = collect_weights(model)
    assert any("projections" in name for name in names)
    assert not any("frozen_bags" in name for name in names)


def test_a_width_that_the_interaction_does_not_have_is_refused(tmp_path: Path) -> None:
    frozen = frozen_table(tmp_path, "text", 50, 8, ("f4",))
    config = compose_train("model.vectors.project=16")
    spec = ModelSpec(config.model, [TRAINED[0], frozen], NUM_DENSE)
    with refused(
        ConfigError, "model.vectors.project", "is the width that vectors are projected to...", value=16
    ):
        build_model(spec, CPU)
    alone = ModelSpec(compose_train().model, [frozen], NUM_DENSE)
    with refused(ConfigError, "model.vectors.project", "is needed where no table is trained..."):
        build_model(alone, CPU)


def test_any_width_joins_a_concatenation(tmp_path: Path) -> None:
    frozen = frozen_table(tmp_path, "text", 50, 8, ("f4",))
    config = compose_train("optimizer=sgd", *KINDS["concat"], "model.vectors.project=20")
    assert_like_plain(config, [TRAINED[0], frozen], SIZES)
