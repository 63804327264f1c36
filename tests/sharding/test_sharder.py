"""What an evaluation leaves as it was in fbgemm's kernels."""

from typing import Any

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.sharding.sharder import ExactMeanCollection, fused_kernels, reset_caches, undisturbed
from dlrm_app.tables.table import Table
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.trainable import trainable_of


def test_evaluating_neither_counts_nor_locks_cached_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the pipeline prefetch a lookup locks rows, and only a backward pass unlocks them."""
    locks: list[bool] = []
    look_up = SplitTableBatchedEmbeddingBagsCodegen.forward

    def watched(kernel: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        locks.append(kernel.lock_cache_line)
        return look_up(kernel, *inputs, **options)

    monkeypatch.setattr(SplitTableBatchedEmbeddingBagsCodegen, "forward", watched)
    with start_runtime(num_threads=1) as runtime:
        model = trainable_of(compose_train("optimizer=rowwise_adagrad"), TABLES, NUM_DENSE, runtime).model
        batch, kernels = to_batch(*draw(0, 8)), list(fused_kernels(model))
        for kernel in kernels:
            kernel.lock_cache_line = True  # as a GPU's prefetching kernels are made
        model(batch)
        steps = [int(kernel.iter) for kernel in kernels]
        with undisturbed(model), torch.no_grad():
            model(batch)
        model(batch)
    each = len(kernels)
    assert locks == [True] * each + [False] * each + [True] * each
    assert [int(kernel.iter) for kernel in kernels] == [2 * count for count in steps]


def test_caches_of_all_kernels_are_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrec keeps them in lists, where modules() does not look."""
    emptied: list[object] = []
    emptying = "reset_cache_states"
    monkeypatch.setattr(
        SplitTableBatchedEmbeddingBagsCodegen, emptying, lambda kernel: emptied.append(kernel)
    )
    with start_runtime(num_threads=1) as runtime:
        model = trainable_of(compose_train("optimizer=rowwise_adagrad"), TABLES, NUM_DENSE, runtime).model
        reset_caches(model)
    assert emptied
    assert [*map(id, emptied)] == [*map(id, fused_kernels(model))]


def test_divisors_of_means_have_one_number_a_key() -> None:
    """They are kept for the batches ahead: as wide as the vectors they would take gigabytes."""
    tables = [Table(f"t{n}", 20, 8, (f"f{n}",), pooling="mean" if n % 2 else "sum") for n in range(100)]
    with start_runtime(num_threads=1) as runtime:
        settings = compose_train("optimizer=rowwise_adagrad", "sharding.types=[row_wise]")
        model = trainable_of(settings, tables, NUM_DENSE, runtime).model
        (collection,) = [module for module in model.modules() if isinstance(module, ExactMeanCollection)]
        batch = to_batch(*draw(0, 8, tables))
        divisor = collection._divisor(batch.sparse_features)
    assert divisor.shape == (8, 100)
    assert divisor.untyped_storage().nbytes() == 8 * 100 * 4
