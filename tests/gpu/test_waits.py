"""Places where a training step waits for the GPU (see docs/gpu.md)."""

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.gpu.cases import STEPS
from tests.gpu.conftest import DEVICE, RANKS, SECONDS, train_legs
from tests.ranks import start_ranks


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="a step on the CPU waits for no GPU")
def test_a_step_waits_for_the_gpu_in_libraries_alone(
    settings: list[str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    quiet = [*settings, "trainer.log_every_steps=1000"]
    waits = []
    for steps in (STEPS, 2 * STEPS):
        leg = [*quiet, f"trainer.max_steps={steps}", f"output={tmp_path}/{steps}"]
        waits.append(start_ranks(partial(waits_of, leg), RANKS, RANKS, SECONDS)[0])
    per_step = {place: count / STEPS for place, count in (waits[1] - waits[0]).most_common()}
    record_property("waits a step", ", ".join(f"{place}: {count:.2f}" for place, count in per_step.items()))
    assert [place for place in per_step if "/dlrm_app/" in place] == []


def waits_of(leg: list[str]) -> Counter[str]:
    """Counts how often a run waits for the GPU, by line of code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        train_legs([leg], {})
    places = (f"{each.filename}:{each.lineno}" for each in caught if "synchronizing" in str(each.message))
    return Counter(place.rpartition("site-packages/")[2] for place in places)
