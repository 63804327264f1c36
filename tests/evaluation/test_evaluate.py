"""Forward passes through a pipeline are those of plain calls, and leave the model as it was."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.evaluation import evaluate as evaluation
from dlrm_app.evaluation.evaluate import ForwardPasses, batch_rows
from dlrm_app.loader.batch import Batch
from tests.loader.dataset_fixture import write_dataset
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.ranks import on_ranks
from tests.small_run import train_here
from tests.trainable import trainable_of

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
    return trainable_of(config, TABLES, NUM_DENSE, runtime).model.eval()


@torch.no_grad()
def plain(model: Any, batches: Batches) -> list[torch.Tensor]:
    return [model(batch)[1].logits for batch in batches]


@torch.no_grad()
def piped(passes: ForwardPasses, batches: Batches) -> list[torch.Tensor]:
    with closing(passes.over(batches)) as scored:
        return [logits for _, logits in scored]


def both_ways(runtime: Runtime) -> tuple[list[torch.Tensor], ...]:
    """Logits of this rank's rows before, through the pipeline twice, and after."""
    model, batches = sharded_model(runtime), Batches(runtime)
    before, passes = plain(model, batches), ForwardPasses(model, runtime.device)
    twice = [piped(passes, batches) for _ in range(2)]
    return before, *twice, plain(model, batches)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_equal_plain_calls_to_the_bit(num_ranks: int) -> None:
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
            assert len(piped(ForwardPasses(model, runtime.device), Batches(runtime))) == NUM_BATCHES
    assert done == ["input_dist", *["input_dist", "compute_and_output_dist"] * 4, "compute_and_output_dist"]


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_an_unreadable_split_restores_the_models_forward(
    fails_at: int,
) -> None:
    with start_runtime(num_threads=1) as runtime:
        model = sharded_model(runtime)
        expected, passes = plain(model, Batches(runtime)), ForwardPasses(model, runtime.device)
        with pytest.raises(OSError, match="no such shard"):
            piped(passes, Batches(runtime, fails_at=fails_at))
        assert all(map(torch.equal, plain(model, Batches(runtime)), expected))
        assert all(map(torch.equal, piped(passes, Batches(runtime)), expected))
        with closing(passes.over(Batches(runtime))) as scored:
            next(scored)  # left in the middle
        assert all(map(torch.equal, piped(passes, Batches(runtime)), expected))


def test_all_evaluations_of_a_run_have_one_pipeline(tmp_path: Path) -> None:
    """Each would have streams of its own on a GPU, and keep memory for them."""
    write_dataset(tmp_path / "data", rows={"train": 1000, "val": 200, "test": 200})
    made = mock.patch.object(evaluation, "TrainPipelineSparseDist", wraps=evaluation.TrainPipelineSparseDist)
    with made as makes:
        result = train_here(tmp_path / "run", f"data.path={tmp_path / 'data'}", "evaluation.every_steps=3")
    assert len(result.evals) == 2
    assert makes.call_count == 1


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
    assert batch_rows(asked, batch_size, Ranks(0, 0, 8, 8, device_type)) == rows
