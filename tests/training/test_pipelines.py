"""Train pipelines: no batch under way is lost, taken twice or seen by an evaluation."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import ConfigError
from dlrm_app.training.setup import build_trainable
from dlrm_app.training.train import train
from tests.data.dataset_fixture import write_dataset
from tests.plain_optimizers import DENSE, RowByRow
from tests.plain_training import BATCH, NUM_STEPS, compose_train, plain_copy, run_sharded
from tests.random_batches import NUM_DENSE, TABLES, draw
from tests.small_run import SMALL, events, final_bytes, losses

EXACT = ("base", "sparse_dist", "fused_sparse_dist")
ON_CPU = (*EXACT, "semi_sync")
VAL_ROWS = 333
WISHES = [
    *SMALL,
    "trainer.epochs=2",
    "trainer.threads=1",
    "evaluation.batch_size=64",
    "report.enabled=false",
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks") / "dataset"
    write_dataset(folder, rows={"train": 1000, "val": VAL_ROWS})  # 7 steps an epoch
    return folder


def run(dataset: Path, output: Path, *overrides: str) -> Path:
    arguments = [*WISHES, f"data.path={dataset}", f"output={output}", *overrides]
    train(compose_config("train", TrainConfig, arguments))
    return output


@pytest.mark.parametrize("pipeline", ON_CPU)
def test_evaluating_in_mid_epoch_leaves_training_as_it_was(
    pipeline: str, dataset: Path, tmp_path: Path
) -> None:
    """The same losses, and the same weights and optimizer state to the bit."""
    override = f"trainer.pipeline={pipeline}"
    without = run(dataset, tmp_path / "without", override)
    within = run(dataset, tmp_path / "within", override, "evaluation.every_steps=2")
    assert len(events(within, "eval")) == 8
    assert losses(within) == losses(without)
    assert final_bytes(within) == final_bytes(without)


@pytest.mark.parametrize("pipeline", ON_CPU)
def test_an_evaluation_in_mid_epoch_sees_the_split_and_nothing_else(
    pipeline: str, dataset: Path, tmp_path: Path
) -> None:
    """As many rows as val has, and the metrics of a run that ends there with an empty pipeline."""
    override = f"trainer.pipeline={pipeline}"
    within = run(dataset, tmp_path / "within", override, "evaluation.every_steps=5")
    ended = run(dataset, tmp_path / "ended", override, "trainer.max_steps=5")
    found, expected = events(within, "eval")[0], events(ended, "eval")[0]
    assert (found["step"], found["num_samples"]) == (5, VAL_ROWS)
    for metric in ("auc", "logloss", "ne", "calibration"):
        assert found[metric] == expected[metric]


def test_pipelines_that_are_exact_train_alike_to_the_bit(dataset: Path, tmp_path: Path) -> None:
    runs = {name: run(dataset, tmp_path / name, f"trainer.pipeline={name}") for name in EXACT}
    expected = final_bytes(runs["sparse_dist"])
    assert all(final_bytes(folder) == expected for folder in runs.values())


@pytest.mark.parametrize("pipeline", EXACT)
def test_a_run_cut_in_mid_epoch_goes_on_to_the_bit(pipeline: str, dataset: Path, tmp_path: Path) -> None:
    override = f"trainer.pipeline={pipeline}"
    whole = run(dataset, tmp_path / "whole", override)
    run(dataset, tmp_path / "cut", override, "trainer.max_steps=4")
    cut = run(dataset, tmp_path / "cut", override, "resume=auto")
    assert losses(cut) == losses(whole)
    assert final_bytes(cut) == final_bytes(whole)


def test_semi_sync_reads_rows_as_they_were_one_step_before() -> None:
    """As plain torch whose lookups miss the newest update of the tables, while the dense part never lags."""
    config = compose_train("trainer.pipeline=semi_sync", "optimizer=adagrad")
    steps = [draw(seed, BATCH) for seed in range(NUM_STEPS)]
    with start_runtime(num_threads=1) as runtime:
        trainable = build_trainable(config, TABLES, NUM_DENSE, runtime)
        plain = plain_copy(trainable)
        found = run_sharded(trainable, config, steps)
    tables = [plain.bags[table.name].weight for table in TABLES]
    sparse = RowByRow(tables, config.optimizer.sparse)
    dense = DENSE[config.optimizer.dense.kind](list(plain.dense.values()), config.optimizer.dense)
    expected, before = [], [table.detach().clone() for table in tables]
    for rows, ids, labels in steps:
        now = [table.detach().clone() for table in tables]
        plain.zero_grad(set_to_none=False)
        overwrite(tables, before)
        loss = F.binary_cross_entropy_with_logits(plain(rows, ids), labels)
        loss.backward()
        overwrite(tables, now)
        before = now
        sparse.step()
        dense.step()
        expected.append(loss.detach())
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def overwrite(tables: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    for table, value in zip(tables, values, strict=True):
        table.data.copy_(value)


def test_prefetch_on_cpu_is_refused_with_what_to_use(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no GPU: use trainer\.pipeline=sparse_dist"):
        run(dataset, tmp_path / "run", "trainer.pipeline=prefetch")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pipeline", ["fused_sparse_dist", "semi_sync"])
def test_looking_up_before_the_optimizer_beside_has_stepped_is_refused(
    pipeline: str, dataset: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"3 tables \(as t_c0\) that are replicated or have no fused"):
        run(dataset, tmp_path / "run", f"trainer.pipeline={pipeline}", "optimizer=adam")
