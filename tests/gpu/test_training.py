"""Trainings on the device have a CPU run's losses; where a step waits; what commands do with a checkpoint."""

import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.export import ExportConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.errors import DlrmError
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.inference.export import export_model
from dlrm_app.inference.predict.predict import predict
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import TrainEvent, read_events
from tests.composed import compose_config
from tests.gpu.cases import STEPS, Case, cases
from tests.gpu.conftest import DEVICE, ON_GPU, RANKS, SECONDS, Note, Reference, train_legs
from tests.ranks import start_ranks
from tests.small_run import final_bytes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", cases(DEVICE), ids=lambda case: case.name)
def test_losses_match_the_cpu(
    case: Case, reference: Reference, tmp_path: Path, record_property: Note
) -> None:
    first, whole, common = reference(case.model)
    legs, resume = [], [] if case.is_fresh else [f"resume={first}"]
    for number, leg in enumerate(case.legs):
        output = tmp_path / str(number)
        legs.append([*common, *leg, *resume, f"output={output}"])
        resume = [f"resume={output}"]
    start_ranks(partial(train_legs, legs, {}), RANKS, RANKS, SECONDS)
    expected, found = losses_of(whole), losses_of(output)
    assert set(found) == set(expected)
    difference = max(abs(found[key] - value) / abs(value) for key, value in expected.items())
    record_property("losses differ by", f"{difference:.1e}")
    assert found == pytest.approx(expected, rel=case.tolerance)


def losses_of(run: Path) -> dict[str, float]:
    """Step → training loss, and val's log losses at the end, of the weights and of their average."""
    losses = {}
    for event in read_events(run):
        if isinstance(event, TrainEvent):
            losses[f"{event.step:03d}"] = event.loss
        elif isinstance(event, Evaluation) and event.step == STEPS:
            losses |= {name: value for name, value in event.metrics.items() if name.endswith("logloss")}
    return losses


@pytest.mark.skipif(not ON_GPU, reason="a step on the CPU waits for no GPU")
def test_a_step_waits_for_the_gpu_in_libraries_alone(
    settings: list[str], tmp_path: Path, record_property: Note
) -> None:
    waits, quiet = [], [*settings, "trainer.log_every_steps=1000"]
    for steps in (STEPS, 2 * STEPS):
        leg = [*quiet, f"trainer.max_steps={steps}", f"output={tmp_path}/{steps}"]
        waits.append(start_ranks(partial(waits_of, leg), RANKS, RANKS, SECONDS)[0])
    per_step = {place: count / STEPS for place, count in (waits[1] - waits[0]).most_common()}
    record_property("waits a step", ", ".join(f"{place}: {count:.2f}" for place, count in per_step.items()))
    assert [place for place in per_step if "/dlrm_app/" in place] == []


def waits_of(leg: list[str]) -> Counter[str]:
    """Line of code → how often a run waits for the GPU there."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        train_legs([leg], {})
    places = (f"{each.filename}:{each.lineno}" for each in caught if "synchronizing" in str(each.message))
    return Counter(place.rpartition("site-packages/")[2] for place in places)


def test_a_checkpoint_of_the_device_can_be_used_everywhere(settings: list[str], tmp_path: Path) -> None:
    leg = [*settings, f"output={tmp_path}/run"]
    start_ranks(partial(train_legs, [leg], {}), RANKS, RANKS, SECONDS)
    (found,) = start_ranks(partial(use_checkpoint, settings[0], tmp_path), 1, 1, SECONDS)
    assert found == pytest.approx([losses_of(tmp_path / "run")["logloss"]] * 2, rel=1e-5)


def use_checkpoint(data: str, folder: Path) -> list[float]:
    """Val's log losses by dlrm-evaluate and dlrm-predict; dlrm-export compares the model's scores itself."""
    keys = ["split=val", "threads=1"]
    checkpoint, scores = f"checkpoint={folder}/run", f"{folder}/scores.parquet"
    predicted = [f"model={folder}/run", data, f"output={scores}", *keys]
    predict(compose_config("predict", PredictConfig, predicted))
    keys_of_both = [checkpoint, data, f"scores=[{scores}]", *keys]
    models = evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, keys_of_both)).models
    export = [checkpoint, "format=torchscript", f"output={folder}/export", "judgement=ignore", *keys]
    export_model(compose_config("export", ExportConfig, export))
    return [model.metrics["logloss"] for model in models]


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_a_resumed_run_ends_with_the_same_bits(optimizer: str, settings: list[str], tmp_path: Path) -> None:
    """With tables that are rounded at random."""
    keys = [*settings, f"optimizer={optimizer}", "tables.data_type=fp16", "trainer.deterministic=true"]
    legs = [
        [*keys, f"output={tmp_path}/whole"],
        [*keys, f"output={tmp_path}/cut", f"trainer.max_steps={STEPS // 2}"],
        [*keys, f"output={tmp_path}/cut", "resume=auto"],
    ]
    start_ranks(partial(train_legs, legs, {}), RANKS, RANKS, SECONDS)
    assert losses_of(tmp_path / "cut") == losses_of(tmp_path / "whole")
    assert final_bytes(tmp_path / "cut") == final_bytes(tmp_path / "whole")


def test_weights_that_diverge_are_named(settings: list[str], tmp_path: Path) -> None:
    leg = [*settings, "optimizer=sgd", "optimizer.dense.lr=1e38", f"output={tmp_path}/run"]
    for refusal in start_ranks(partial(refusal_of, leg), RANKS, RANKS, SECONDS):
        assert "the loss was not finite at step 2" in refusal
        assert "its inputs are finite, so the weights diverged" in refusal


def refusal_of(leg: list[str]) -> str:
    """The message of the error that ends a run."""
    with pytest.raises(DlrmError) as refusal:
        train_legs([leg], {})
    return str(refusal.value)
