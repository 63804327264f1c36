"""Trainings on the device have the losses of a CPU reference run, and resume from its checkpoint."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import TrainEvent, read_events
from tests.gpu.cases import STEPS, Case, cases
from tests.gpu.conftest import DEVICE, RANKS, SECONDS, train_legs
from tests.ranks import start_ranks


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases(DEVICE), ids=lambda case: case.name)
def test_losses_match_the_cpu(
    case: Case,
    settings: list[str],
    reference: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    first, whole = reference(case.optimizer)
    legs = []
    before = None if case.is_fresh else first
    for number, leg in enumerate(case.legs):
        output = tmp_path / str(number)
        resume = [f"resume={before}"] if before else []
        legs.append([*settings, *leg, *resume, f"output={output}"])
        before = output
    start_ranks(partial(train_legs, legs, {}), RANKS, RANKS, SECONDS)
    expected, found = losses_of(whole), losses_of(output)
    assert set(found) == set(expected)
    difference = max(abs(found[key] - value) / abs(value) for key, value in expected.items())
    record_property("losses differ by", f"{difference:.1e}")
    assert found == pytest.approx(expected, rel=case.tolerance)


def losses_of(run: Path) -> dict[str, float]:
    """Step → training loss, and val's log loss at the end."""
    losses = {}
    for event in read_events(run):
        if isinstance(event, TrainEvent):
            losses[f"{event.step:03d}"] = event.loss
        elif isinstance(event, Evaluation) and event.step == STEPS:
            losses["val"] = event.metrics["logloss"]
    return losses
