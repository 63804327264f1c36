"""Runs with what recipes for full data ask for, all at once: L2 of whole tables under Adam with a warm-up, an average of the
dense weights, batches in pieces, a rate that falls on a plateau. Any number of ranks, stopped and gone on with."""

from pathlib import Path

import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.errors import ConfigError
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, events, final_bytes, losses, train_here

RECIPE = [
    "optimizer=adam",
    "optimizer.sparse.lr=0.01",
    "optimizer.sparse.weight_decay=0.001",
    "optimizer.sparse.weight_decay_mode=coupled",
    "optimizer.sparse.updated_rows=all",
    "optimizer.dense.ema_decay=0.8",
    "schedule=plateau",
    "schedule.sparse.warmup_steps=4",
    "schedule.dense.warmup_steps=4",
    "evaluation.every_steps=3",
    "trainer.micro_batches=3",
    "trainer.max_steps=12",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    write_dataset(folder / "dataset", rows={"train": 4000, "val": 1001})
    train_here(folder / "whole", f"data.path={folder}/dataset", *RECIPE)
    return folder


def scores(run: Path) -> torch.Tensor:
    """AUC and log loss of every evaluation on val, of the weights and of their average."""
    names = ("auc", "logloss", "ema_auc", "ema_logloss")
    return torch.tensor([[event[name] for name in names] for event in events(run, "eval")])


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_do_not_change_what_is_learnt(folder: Path, num_ranks: int) -> None:
    run = folder / f"on-{num_ranks}"
    settings = [*SMALL, f"data.path={folder}/dataset", *RECIPE, "report.enabled=false", f"output={run}"]
    train_on_ranks(num_ranks, *settings)
    expected = torch.tensor(losses(folder / "whole"))
    torch.testing.assert_close(torch.tensor(losses(run)), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(scores(run), scores(folder / "whole"), rtol=1e-5, atol=1e-5)


def test_a_stop_changes_nothing(folder: Path) -> None:
    cut = [f"data.path={folder}/dataset", *RECIPE]
    train_here(folder / "cut", *cut, "trainer.max_steps=6")
    train_here(folder / "cut", *cut, "resume=auto")
    assert losses(folder / "cut") == losses(folder / "whole")
    assert final_bytes(folder / "cut") == final_bytes(folder / "whole")
    assert torch.equal(scores(folder / "cut"), scores(folder / "whole"))


def test_the_average_is_another_model_and_a_checkpoint_has_both(folder: Path) -> None:
    (logged,) = [event for event in events(folder / "whole", "eval") if event["step"] == 12]
    assert logged["ema_logloss"] != logged["logloss"]
    for ema, prefix in ((False, ""), (True, "ema_")):
        keys = [f"checkpoint={folder}/whole", "split=val", "threads=1", f"ema={ema}"]
        (found,) = evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, keys)).models
        for name in ("auc", "logloss", "calibration"):
            assert found.metrics[name] == pytest.approx(logged[f"{prefix}{name}"], abs=1e-6)


def test_an_average_begins_where_a_run_without_one_goes_on(folder: Path) -> None:
    """After its first step it is these weights; asked for of a checkpoint without one it is refused."""
    keys = [f"data.path={folder}/dataset", "trainer.max_steps=2"]
    train_here(folder / "late", *keys)
    ask = [f"checkpoint={folder}/late", "split=val", "threads=1", "ema=true"]
    with pytest.raises(
        ConfigError, match=r"ema=true: .* has no average of its dense weights: leave ema=true out"
    ):
        evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, ask))
    train_here(folder / "late", *keys, "trainer.max_steps=3", "optimizer.dense.ema_decay=0.5", "resume=auto")
    before, after = events(folder / "late", "eval")
    low, high = sorted([before["logloss"], after["logloss"]])
    assert low < after["ema_logloss"] < high
