"""Train pipelines: no batch under way is lost, taken twice or seen by an evaluation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torchrec.distributed.train_pipeline import PrefetchTrainPipelineSparseDist

from dlrm_app.training.pipelines import Prefetch
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import events, final_bytes, losses, train_here

ON_CPU = ("base", "sparse_dist")
VAL_ROWS = 333


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks") / "dataset"
    write_dataset(folder, rows={"train": 1000, "val": VAL_ROWS})  # 7 steps an epoch
    return folder


def run(dataset: Path, output: Path, *overrides: str) -> Path:
    train_here(output, f"data.path={dataset}", "trainer.epochs=2", "evaluation.batch_size=64", *overrides)
    return output


@pytest.fixture(scope="module")
def whole(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An undisturbed run of each pipeline."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: run(dataset, folder / name, f"trainer.pipeline={name}") for name in ON_CPU}


def test_exact_pipelines_give_the_same_bits(whole: dict[str, Path]) -> None:
    expected = final_bytes(whole["sparse_dist"])
    assert all(final_bytes(folder) == expected for folder in whole.values())


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ON_CPU)
def test_evaluating_and_stopping_mid_epoch_keep_the_losses(
    pipeline: str, whole: dict[str, Path], dataset: Path, tmp_path: Path
) -> None:
    """The same losses, and the same weights and optimizer state to the bit.

    An evaluation sees as many rows as val has, and finds the metrics of a run that ends there with an empty pipeline.
    """
    override = f"trainer.pipeline={pipeline}"
    within = run(dataset, tmp_path / "within", override, "evaluation.every_steps=2")
    run(dataset, tmp_path / "cut", override, "trainer.max_steps=4")
    found, expected = events(within, "eval")[1], events(tmp_path / "cut", "eval")[0]
    assert (found["step"], found["num_samples"]) == (4, VAL_ROWS)
    for metric in ("auc", "logloss", "ne", "calibration"):
        assert found[metric] == expected[metric]
    cut = run(dataset, tmp_path / "cut", override, "resume=auto")
    assert len(events(within, "eval")) == 8
    for disturbed in (within, cut):
        assert losses(disturbed) == losses(whole[pipeline])
        assert final_bytes(disturbed) == final_bytes(whole[pipeline])


POLYNOMIAL = [
    f"schedule.{part}.{setting}"
    for part in ("sparse", "dense")
    for setting in ("kind=polynomial", "warmup_steps=2", "decay_start=2", "decay_steps=7", "power=2")
]


def polynomial(step: int) -> float:
    """The factor of a learning rate in ``step``, written out."""
    return step / 2 if step < 2 else max(0.0, 1 - (step - 2) / 7) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ON_CPU)
def test_a_resumed_run_has_the_learning_rates_of_its_steps(
    pipeline: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by the kernels, one lookup a step, from the first step, after an evaluation, a resume and in a new epoch."""
    seen: list[float] = []
    look_up = SplitTableBatchedEmbeddingBagsCodegen.forward

    def watched(kernel: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        if torch.is_grad_enabled():  # not those of evaluations
            seen.append(kernel.get_learning_rate())
        return look_up(kernel, *inputs, **options)

    monkeypatch.setattr(SplitTableBatchedEmbeddingBagsCodegen, "forward", watched)
    wishes = [
        f"trainer.pipeline={pipeline}",
        "optimizer.sparse.lr=1",
        *POLYNOMIAL,
        "evaluation.every_steps=2",
    ]
    run(dataset, tmp_path / "run", *wishes, "trainer.max_steps=4")
    run(dataset, tmp_path / "run", *wishes, "resume=auto")
    assert seen == pytest.approx([polynomial(step) for step in range(1, 15)])


class Stream:
    """A stream of a GPU that is not there; notes what it waits for."""

    def __init__(self, name: str, calls: list[tuple[str, str]]) -> None:
        self.name, self._calls = name, calls

    def wait_stream(self, other: "Stream") -> None:
        self._calls.append((self.name, other.name))


def test_prefetch_exchanges_ids_after_rows_on_the_right_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory of ids that are still read would be given to those of the next batch."""
    calls: list[tuple[str, str]] = []
    computing = Stream("compute", calls)

    def init(pipeline: Any, *_: Any) -> None:
        pipeline._default_stream = Stream("never used", calls)
        pipeline._data_dist_stream, pipeline._prefetch_stream = Stream("ids", calls), Stream("rows", calls)

    monkeypatch.setattr(PrefetchTrainPipelineSparseDist, "__init__", init)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(
        PrefetchTrainPipelineSparseDist,
        "start_sparse_data_dist",
        lambda *_: calls.append(("exchange", "ids")),
    )
    missing: Any = None
    pipeline = Prefetch(missing, missing, torch.device("cuda"))
    pipeline.start_sparse_data_dist(missing, missing)
    assert calls == [("ids", "rows"), ("exchange", "ids")]
    assert pipeline._default_stream is computing
