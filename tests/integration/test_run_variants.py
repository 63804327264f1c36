"""Runs whose settings affect every rank and the checkpoint: batch norm, dropout, a compiled dense part, an ensemble.

They learn the same on any number of ranks, and when stopped and resumed.
"""

from pathlib import Path

import pytest
import torch

from dlrm_app.errors import ConfigError
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.refusals import refused
from tests.small_run import SMALL, evaluate_here, events, losses, train_here

GENTLE = ["optimizer=sgd", "optimizer.sparse.lr=0.01"]
VARIANTS = {
    "normed": ["model.batch_norm=true", *GENTLE],
    "dropout": ["model.batch_norm=true", "model.dropout=0.3", *GENTLE],
    "compiled": ["trainer.compile=true", *GENTLE],
    "compiled-normed": ["trainer.compile=true", "model.batch_norm=true", *GENTLE],
    "recipe": [
        "optimizer=adam",
        "optimizer.sparse.lr=0.01",
        "optimizer.sparse.weight_decay=0.001",
        "optimizer.sparse.weight_decay_mode=coupled",
        "optimizer.sparse.updated_rows=all",
        "optimizer.dense.ema_decay=0.8",
        "model.dense_embedding_dim=4",
        "schedule=cosine",
        "schedule.sparse.decay_steps=20",
        "schedule.dense.decay_steps=20",
        "schedule.sparse.warmup_steps=4",
        "schedule.dense.warmup_steps=4",
        "evaluation.every_steps=3",
    ],
    "ensemble": ["model.ensemble_size=4", "tables.embedding_dim=16", *GENTLE],
}
LONG = pytest.mark.long


class Runs:
    """One dataset and an undisturbed run of 12 steps of each variant, made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_dataset(folder / "dataset", rows={"train": 4000, "val": 1001})

    def keys(self, variant: str) -> list[str]:
        return [f"data.path={self.folder}/dataset", "trainer.max_steps=12", *VARIANTS[variant]]

    def whole(self, variant: str) -> Path:
        run = self.folder / variant
        if not run.exists():
            torch.compiler.reset()
            train_here(run, *self.keys(variant))
        return run

    def on_two_ranks(self, variant: str) -> Path:
        run = self.folder / f"{variant} on two ranks"
        if not run.exists():
            train_on_ranks(2, *SMALL, *self.keys(variant), "report.enabled=false", f'output="{run}"')
        return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("variants"))


def scores(run: Path) -> torch.Tensor:
    """AUC and log loss of every evaluation on val, of the weights and of their average, if there is one."""
    names = ("auc", "logloss", "ema_auc", "ema_logloss")
    return torch.tensor([[event[name] for name in names if name in event] for event in events(run, "eval")])


def assert_close(run: Path, expected: Path) -> None:
    some, others = torch.tensor(losses(run)), torch.tensor(losses(expected))
    torch.testing.assert_close(some, others, rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "num_ranks"),
    [
        ("normed", 2),
        ("recipe", 2),
        pytest.param("normed", 4, marks=LONG),
        pytest.param("recipe", 4, marks=LONG),
        pytest.param("ensemble", 2, marks=LONG),
        pytest.param("compiled", 2, marks=LONG),
        pytest.param("compiled-normed", 2, marks=LONG),  # over ranks batch norm's part is not compiled
    ],
)
def test_ranks_do_not_change_what_is_learnt(runs: Runs, variant: str, num_ranks: int, tmp_path: Path) -> None:
    """The dense part's gradients are averaged by torch's DistributedDataParallel."""
    run, whole = tmp_path / "run", runs.whole(variant)
    if num_ranks == 2:
        run = runs.on_two_ranks(variant)
    else:
        train_on_ranks(num_ranks, *SMALL, *runs.keys(variant), "report.enabled=false", f"output={run}")
    assert_close(run, whole)
    torch.testing.assert_close(scores(run), scores(whole), rtol=1e-5, atol=1e-5)


def test_dropout_changes_what_is_learnt(runs: Runs) -> None:
    assert losses(runs.whole("dropout")) != losses(runs.whole("normed"))


@LONG
def test_a_compiled_run_learns_the_same_as_an_uncompiled_one(runs: Runs, tmp_path: Path) -> None:
    train_here(tmp_path / "plain", *runs.keys("compiled"), "trainer.compile=false")
    assert_close(runs.whole("compiled"), tmp_path / "plain")


def evaluated(run: Path, *keys: str) -> dict[str, float]:
    """Metrics on val of the run's checkpoint."""
    return evaluate_here(f"checkpoint={run}", "split=val", *keys).models[0].metrics


def test_a_checkpoint_predicts_by_the_running_moments(runs: Runs) -> None:
    """Whatever the batch size: each row's score is its own."""
    metrics = evaluated(runs.whole("normed"), "batch_size=7")
    (logged,) = [event for event in events(runs.whole("normed"), "eval") if event["split"] == "val"]
    assert metrics["auc"] == pytest.approx(logged["auc"], abs=1e-9)
    assert metrics["logloss"] == pytest.approx(logged["logloss"], abs=1e-6)


def test_the_average_is_another_model_and_a_checkpoint_has_both(runs: Runs) -> None:
    (logged,) = [event for event in events(runs.whole("recipe"), "eval") if event["step"] == 12]
    assert logged["ema_logloss"] != logged["logloss"]
    for ema, prefix in ((False, ""), (True, "ema_")):
        metrics = evaluated(runs.whole("recipe"), f"ema={ema}")
        for name in ("auc", "logloss", "calibration"):
            assert metrics[name] == pytest.approx(logged[f"{prefix}{name}"], abs=1e-6)


def test_an_average_begins_where_a_run_without_one_goes_on(runs: Runs, tmp_path: Path) -> None:
    """After its first step it is these weights; asked for of a checkpoint without one it is refused."""
    keys = [f"data.path={runs.folder}/dataset", "trainer.max_steps=2"]
    train_here(tmp_path / "late", *keys)
    with refused(
        ConfigError,
        "ema=true",
        "needs an average of the dense weights, which .../late/checkpoints/step-000000002...",
    ):
        evaluated(tmp_path / "late", "ema=true")
    late = ["trainer.max_steps=3", "optimizer.dense.ema_decay=0.5", "resume=auto"]
    train_here(tmp_path / "late", *keys, *late)
    before, after = events(tmp_path / "late", "eval")
    low, high = sorted([before["logloss"], after["logloss"]])
    assert low < after["ema_logloss"] < high
