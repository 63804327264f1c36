"""Lists whose elements have weights train like torch's embedding_bag with per_sample_weights, row by row."""

from itertools import cycle
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch.nn import functional as F

from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.table import Attention, Table
from tests.model.test_parity import MODELS
from tests.plain_training import (
    assert_trains_like_plain,
    compose_train,
    plain_copy,
    run_sharded,
    weights_of,
)
from tests.random_batches import NUM_DENSE, draw, to_batch
from tests.trainable import trainable_of

MEANS = Table("means", 2_000, 8, ("f3_mean", "f5"), pooling="mean", init="normal")
WEIGHTED = Table("seen", 100, 8, ("f3_w", "f1"), init="normal", weighted=("f3_w",))
ATTENTIVE = Table("shown", 60, 8, ("f3_b", "f2"), pooling=Attention("f2", (6,)), init="normal")
TABLES = [Table("bags", 50, 8, ("f4",)), WEIGHTED, MEANS]
"""A list with weights shares its table with a feature that has none."""


@pytest.mark.parametrize(("kind", "kernels"), [*zip(MODELS, cycle(["compiled", "libraries"]))])
def test_steps_equal_weighted_sums_of_plain_torch(kind: str, kernels: str) -> None:
    """Same losses at every step and same weights at the end."""
    words = ["optimizer=rowwise_adagrad", f"trainer.kernels={kernels}"]
    assert_trains_like_plain(compose_train(*words, *MODELS[kind]), TABLES)


@pytest.mark.parametrize("optimizer", SPARSE_OPTIMIZERS)
def test_every_optimizer_steps_by_weighted_gradients(optimizer: str) -> None:
    # dense Adam would turn the rounding of gradients that are nearly 0 into steps
    config = compose_train(f"optimizer={optimizer}", "optimizer.dense.kind=sgd", "optimizer.dense.lr=0.1")
    assert_trains_like_plain(config, TABLES)


@pytest.mark.parametrize("tables", [[WEIGHTED], [ATTENTIVE, WEIGHTED], [MEANS, WEIGHTED, ATTENTIVE]])
def test_weights_stand_beside_every_other_pooling(tables: list[Table]) -> None:
    config = compose_train("optimizer=sgd", "optimizer.dense.kind=sgd", "optimizer.dense.lr=0.1")
    assert_trains_like_plain(config, tables)


@pytest.mark.parametrize("kernels", ["compiled", "libraries"])
def test_the_gradient_of_weights_is_not_computed(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are the same to the bit after 100 steps with the mask that spares it and without."""
    config = compose_train("optimizer=rowwise_adagrad", f"trainer.kernels={kernels}")
    steps = [draw(seed, 32, TABLES) for seed in range(100)]
    masked: list[bool] = []
    look_up = SplitTableBatchedEmbeddingBagsCodegen.forward

    def with_mask(kernel: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        mask = options.get("feature_requires_grad")
        masked.append(mask is not None and not mask.any() and options["per_sample_weights"] is not None)
        return look_up(kernel, *inputs, **options)

    def without_mask(kernel: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        return look_up(kernel, *inputs, **{**options, "feature_requires_grad": None})

    found = []
    for forward in (with_mask, without_mask):
        monkeypatch.setattr(SplitTableBatchedEmbeddingBagsCodegen, "forward", forward)
        with start_runtime(num_threads=1) as runtime:
            trainable = trainable_of(config, TABLES, NUM_DENSE, runtime)
            run_sharded(trainable, config, steps)
            found.append(weights_of(trainable))
    assert sum(masked) == len(steps)
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_pooled_vectors_equal_embedding_bag_in_float64() -> None:
    """Forward, and the gradient of each row, by torch's own weighted sum."""
    config = compose_train("optimizer=sgd", "optimizer.sparse.lr=1.0")
    with start_runtime(num_threads=1) as runtime:
        trainable = trainable_of(config, [WEIGHTED], NUM_DENSE, runtime)
        table = plain_copy(trainable).bags["seen"].weight.detach().double().requires_grad_()
        batch = to_batch(*draw(3, 64, [WEIGHTED]))
        bags = trainable.model.module.model.sparse_arch.embedding_bag_collection
        pooled = bags(batch.sparse_features)
        pooled = pooled.wait() if hasattr(pooled, "wait") else pooled
        features = batch.sparse_features.to_dict()
        expected = [
            F.embedding_bag(
                each.values(),
                table,
                each.offsets()[:-1],
                mode="sum",
                per_sample_weights=each.weights().double(),
            )
            for each in (features[name] for name in WEIGHTED.features)
        ]
        for name, vectors in zip(WEIGHTED.features, expected, strict=True):
            torch.testing.assert_close(pooled[name].double(), vectors, rtol=1e-6, atol=1e-6)
        # the loss is a sum of squares, and SGD with a rate of 1 subtracts the gradient
        sum((pooled[name] ** 2).sum() for name in WEIGHTED.features).backward()  # type: ignore[union-attr]
        torch.stack([(vectors**2).sum() for vectors in expected]).sum().backward()
        assert table.grad is not None
        after = plain_copy(trainable).bags["seen"].weight.detach().double()
        torch.testing.assert_close(table.detach() - after, table.grad, rtol=1e-5, atol=1e-5)
