"""trainer.calibrate: the root that it steps to is found by bisection; stops and ranks change nothing; a run keeps its ranking."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dlrm_app.config.compose import compose_config
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.training.optimization.final_bias import FinalBias
from tests.data.dataset_fixture import write_dataset
from tests.plain_training import compose_train
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, events, final_bytes, losses, train_here

CALIBRATED = ["model.ensemble_size=2", "optimizer=adagrad", "trainer.calibrate=true"]


class TwoModels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.models = nn.ModuleList(nn.ModuleDict({"over_arch": nn.Linear(1, 1)}) for _ in range(2))

    def biases(self) -> list[float]:
        return [model["over_arch"].bias.item() for model in self.models]


def root(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The shift under which the predictions add up to the labels, by bisection."""
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        too_few = (logits.double() + middle).sigmoid().sum() < labels.sum()
        low, high = (middle, high) if too_few else (low, middle)
    return low


def final_bias(num_steps: int, *overrides: str) -> FinalBias:
    """Of a run of ``num_steps`` an epoch."""
    trainer = compose_train("trainer.global_batch_size=64", *overrides).trainer
    return FinalBias(trainer, 64 * num_steps + 5, torch.device("cpu"))


@pytest.mark.parametrize(("offset", "epochs"), [(-0.05, 1), (0.0, 2), (0.08, 1)])
def test_every_model_is_shifted_to_where_the_last_half_epoch_adds_up(offset: float, epochs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    truth = -3 + torch.randn(4, 20_000, generator=generator)
    labels = torch.bernoulli(truth.sigmoid(), generator=generator)
    predicted = truth + offset
    predicted[:2] += 1  # what comes before says nothing
    model = TwoModels()
    before = model.biases()
    ours = final_bias(4, f"trainer.epochs={epochs}")
    last = 4 * epochs
    for step in range(last):
        ours.shift(step, model)
        assert model.biases() == before
        at = max(0, step + 4 - last)
        ours.add(step + 1, predicted[at], labels[at])
    ours.shift(last, model)
    for was, now in zip(before, model.biases(), strict=True):
        assert now - was == pytest.approx(root(predicted[2:], labels[2:]), abs=2e-3)


def test_sums_are_shared_out_among_other_ranks() -> None:
    sums = [[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]
    bias = final_bias(1)
    with start_runtime(1) as runtime:
        bias.load_state(sums, runtime)
        assert bias.state() == [[9.0, 18.0, 36.0]]
        bias.load_state([], runtime)  # of a run that did not add up
        assert bias.state() == [[0.0, 0.0, 0.0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    write_dataset(folder / "dataset", rows={"train": 4000, "val": 1001})
    train_here(folder / "whole", f"data.path={folder}/dataset", *CALIBRATED, "checkpoint.every_steps=20")
    return folder


def test_a_stop_in_the_second_half_changes_nothing(folder: Path) -> None:
    middle = folder / "whole" / "checkpoints" / "step-000000020"
    train_here(folder / "cut", f"data.path={folder}/dataset", *CALIBRATED, f"resume={middle}")
    assert final_bytes(folder / "cut") == final_bytes(folder / "whole")


def test_two_ranks_shift_by_the_same(folder: Path) -> None:
    run = folder / "two"
    settings = [*SMALL, f"data.path={folder}/dataset", *CALIBRATED, "report.enabled=false", f"output={run}"]
    train_on_ranks(2, *settings)
    torch.testing.assert_close(
        torch.tensor(losses(run)), torch.tensor(losses(folder / "whole")), rtol=1e-5, atol=0
    )
    (found,), (expected,) = events(run, "eval"), events(folder / "whole", "eval")
    for name in ("auc", "logloss", "calibration"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)


def test_it_is_a_weight_like_any_and_the_steps_are_as_without(folder: Path) -> None:
    """dlrm-evaluate finds what the run found; the shift comes after the last step."""
    train_here(folder / "without", f"data.path={folder}/dataset", *CALIBRATED[:-1])
    assert losses(folder / "without") == losses(folder / "whole")
    keys = [f"checkpoint={folder}/whole", "split=val", "threads=1"]
    (found,) = evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, keys)).models
    (plain,), (logged,) = events(folder / "without", "eval"), events(folder / "whole", "eval")
    assert found.metrics["calibration"] == pytest.approx(logged["calibration"], abs=1e-6)
    assert logged["calibration"] != pytest.approx(plain["calibration"], abs=1e-4)
    assert logged["auc"] == pytest.approx(plain["auc"], abs=1e-3)
