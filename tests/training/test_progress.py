"""NE and calibration in train events: of rows that the model had not learnt yet, weighted, by ranks and after stops."""

import math
from pathlib import Path

import pytest
import torch

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.supervision import Supervision
from dlrm_app.runs.events import TrainEvent, read_events
from dlrm_app.training.instruments import click_sums, ne_and_calibration
from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.ranks import train_on_ranks
from tests.scored import scored
from tests.small_run import SMALL, evaluate_here, train_here
from tests.weighted_log import describe, draw_rows

ROWS, SHARE = 4096, 0.25
COMMON = [*SMALL, "report.enabled=false", "evaluation.test=false"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,096 rows with weights, of a log that has kept a quarter of its negatives."""
    path = tmp_path_factory.mktemp("progress")
    describe(path, f"negatives_kept: {SHARE}")
    write_csv(path / "log.csv", draw_rows(ROWS)[0])
    given = [f"dataset={path}/log.yaml", f"input.train={path}/log.csv", "encoding.num_embeddings=100"]
    preprocess_here(path / "data", *given)
    return path


def train_events(run: Path) -> list[TrainEvent]:
    return [event for event in read_events(run) if isinstance(event, TrainEvent)]


@pytest.mark.parametrize("share", [1.0, 0.1])
@pytest.mark.parametrize("is_weighted", [True, False])
def test_sums_give_the_metrics_of_the_rows(share: float, is_weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(500, generator=generator), torch.rand(500, generator=generator).round()
    taught = Supervision.unweighted(labels.unsqueeze(0))
    if is_weighted:
        taught = Supervision(taught.labels, torch.rand(500, generator=generator))
    metrics = ClickMetrics("train")
    metrics.update(scored(logits, labels, torch.where(labels > 0, taught.weights, taught.weights / share)))
    found = ne_and_calibration(click_sums(logits, taught, share).tolist())
    expected = metrics.compute()
    assert found == pytest.approx((expected["ne"], expected["calibration"]), rel=1e-6)


@pytest.mark.parametrize("ensemble_size", [1, 2])
def test_a_model_that_learns_nothing_scores_as_in_an_evaluation(folder: Path, ensemble_size: int) -> None:
    """Of all rows of the epoch, in one event."""
    rates = ["optimizer.sparse.lr=1e-30", "optimizer.dense.lr=1e-30", "trainer.log_every_steps=1000"]
    keys = [f"data.path={folder}/data", *COMMON, *rates, f"model.ensemble_size={ensemble_size}"]
    run = folder / f"still-{ensemble_size}"
    train_here(run, *keys)
    (event,) = train_events(run)
    found = evaluate_here(f"checkpoint={run}", "split=train").models[0].metrics
    within = 1e-5 if ensemble_size == 1 else 0.02  # each model scores the rows, not their mean
    assert event.ne == pytest.approx(found["ne"], rel=within)
    assert event.calibration == pytest.approx(found["calibration"], rel=within)


def test_rows_are_scored_before_they_are_learnt(folder: Path) -> None:
    """The first step's event is of the first weights: its calibration is that of the base rate."""
    keys = [f"data.path={folder}/data", *COMMON, "optimizer.dense.lr=1", "optimizer.sparse.lr=1"]
    train_here(folder / "first", *keys, "trainer.max_steps=2", "trainer.global_batch_size=2048")
    first, second = train_events(folder / "first")
    assert first.calibration == pytest.approx(1, abs=0.2)
    assert first.ne == pytest.approx(1, abs=0.05)
    assert second.ne > 1.1  # such rates ruin a model in a step


@pytest.mark.slow
def test_two_ranks_report_the_same_as_one(folder: Path) -> None:
    for number in (1, 2):
        keys = [
            f"data.path={folder}/data",
            *COMMON,
            "trainer.log_every_steps=7",
            f"output={folder}/on-{number}",
        ]
        train_on_ranks(number, *keys)
    one, two = (train_events(folder / f"on-{number}") for number in (1, 2))
    assert [each.ne for each in two] == pytest.approx([each.ne for each in one], rel=1e-4)
    assert [each.calibration for each in two] == pytest.approx([each.calibration for each in one], rel=1e-4)


def test_a_resumed_run_reports_what_an_uninterrupted_one_does(folder: Path) -> None:
    """To the bit, although it stopped between two events."""
    keys = [f"data.path={folder}/data", *COMMON, "trainer.log_every_steps=8", "checkpoint.every_steps=10"]
    keys.append("checkpoint.keep_last=10")
    train_here(folder / "whole", *keys, "trainer.max_steps=24")
    train_here(folder / "stopped", *keys, "trainer.max_steps=24")
    whole = train_events(folder / "whole")
    resumed = folder / "resumed"
    train_here(resumed, *keys, "trainer.max_steps=24", f"resume={folder}/stopped/checkpoints/step-000000010")
    found = train_events(resumed)[-2:]
    assert [(each.step, each.ne, each.calibration) for each in found] == [
        (each.step, each.ne, each.calibration) for each in whole[-2:]
    ]


def test_a_teachers_scores_are_not_counted_as_clicks(folder: Path) -> None:
    from tests.integration.test_sampled_training import scores

    train_here(folder / "teacher", f"data.path={folder}/data", *COMMON, "trainer.max_steps=2")
    scores(folder / "teacher", folder / "data", "train")
    keys = [f"distillation.scores={folder}/teacher/data-train.parquet", "trainer.max_steps=2"]
    train_here(folder / "student", f"data.path={folder}/data", *COMMON, *keys)
    assert all(
        math.isnan(event.ne) and math.isnan(event.calibration) for event in train_events(folder / "student")
    )
    assert read_manifest(folder / "data").kept_share("train") == SHARE
