"""Forward passes through a pipeline are those of plain calls, and leave the model as it was."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import pytest
import torch
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.evaluation.evaluate import batch_rows, forward_passes
from dlrm_app.loader.batch import Batch
from dlrm_app.training.setup import build_trainable
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.ranks import on_ranks

ROWS = 24
NUM_BATCHES = 5


class Batches:
    """This rank's part of NUM_BATCHES random ones. ``fails_at``: the number of one that cannot be read."""

    def __init__(self, runtime: Runtime, fails_at: int | None = None) -> None:
        self._runtime, self._fails_at = runtime, fails_at

    def __len__(self) -> int:
        return NUM_BATCHES

    def __iter__(self) -> Iterator[Batch]:
        for seed in range(NUM_BATCHES):
            if seed == self._fails_at:
                raise OSError("no such shard")
            yield to_batch(*draw(seed, ROWS), self._runtime.rank, self._runtime.world_size)


def sharded_model(runtime: Runtime) -> Any:
    config = compose_train("optimizer=rowwise_adagrad", "sharding.types=[row_wise,column_wise]")
    return build_trainable(config, TABLES, NUM_DENSE, runtime).model.eval()


@torch.no_grad()
def plain(model: Any, batches: Batches) -> list[torch.Tensor]:
    return [model(batch)[1][1] for batch in batches]


@torch.no_grad()
def piped(model: Any, batches: Batches, runtime: Runtime) -> list[torch.Tensor]:
    with closing(forward_passes(model, batches, runtime.device)) as passes:
        return [logits for _, logits in passes]


def both_ways(runtime: Runtime) -> tuple[list[torch.Tensor], ...]:
    """Logits of this rank's rows before, through the pipeline twice, and after."""
    model, batches = sharded_model(runtime), Batches(runtime)
    before = plain(model, batches)
    twice = [piped(model, batches, runtime) for _ in range(2)]
    return before, *twice, plain(model, batches)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_are_those_of_plain_calls_to_the_bit(num_ranks: int) -> None:
    for before, *others in on_ranks(both_ways, num_ranks):
        assert sum(map(len, before)) == NUM_BATCHES * ROWS // num_ranks
        for other in others:
            assert all(map(torch.equal, other, before))


def test_ids_of_the_next_batch_are_sent_before_the_forward_pass() -> None:
    done: list[str] = []

    def note(name: str) -> Any:
        method = getattr(ShardedEmbeddingBagCollection, name)

        def noted(*inputs: Any, **options: Any) -> Any:
            done.append(name)
            return method(*inputs, **options)

        return mock.patch.object(ShardedEmbeddingBagCollection, name, noted)

    with start_runtime(num_threads=1) as runtime:
        model = sharded_model(runtime)
        with note("input_dist"), note("compute_and_output_dist"):
            assert len(piped(model, Batches(runtime), runtime)) == NUM_BATCHES
    assert done == ["input_dist", *["input_dist", "compute_and_output_dist"] * 4, "compute_and_output_dist"]


def test_a_split_that_cannot_be_read_leaves_the_model_its_own_forward() -> None:
    with start_runtime(num_threads=1) as runtime:
        model = sharded_model(runtime)
        expected = plain(model, Batches(runtime))
        with pytest.raises(OSError, match="no such shard"):
            piped(model, Batches(runtime, fails_at=3), runtime)
        assert all(map(torch.equal, plain(model, Batches(runtime)), expected))


@pytest.mark.parametrize(
    ("asked", "batch_size", "device_type", "rows"),
    [
        (None, 65536, "cpu", 4096),
        (None, 65536, "cuda", 16384),
        (64, 65536, "cuda", 64),
        (64, 65536, "cpu", 64),
        (None, 128, "cuda", 4096),
    ],
)
def test_evaluations_have_batches_for_the_device(
    asked: int | None, batch_size: int, device_type: str, rows: int
) -> None:
    """Twice training's on a GPU, small steps excepted; what is asked for, everywhere."""
    assert batch_rows(asked, batch_size, 8, device_type) == rows
