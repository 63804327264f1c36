"""The whole command with the CPU in the GPU's place."""

import json
import time
from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.gpu_check import GpuCheckConfig
from dlrm_app.doctor.finding import Finding, State
from dlrm_app.errors import ConfigError
from dlrm_app.runs.checkpoint.progress import Evaluation
from dlrm_app.runs.events import TrainEvent, event_to_json
from dlrm_app.training.gpu_check import check as module
from dlrm_app.training.gpu_check.check import (
    Work,
    check,
    find_ranks,
    largest_difference,
    only_problems,
    read_losses,
)
from dlrm_app.training.gpu_check.outcome import OUT_OF_TIME
from dlrm_app.training.gpu_check.processes import Result


def config(*overrides: str) -> GpuCheckConfig:
    return compose_config("gpu-check", GpuCheckConfig, list(overrides))


def test_a_machine_without_gpus_is_told_how_to_try_it() -> None:
    with pytest.raises(ConfigError, match=r"there are 0 GPUs: .*device=cpu ranks=2"):
        find_ranks(config())
    assert find_ranks(config("device=cpu")) == 2


def test_a_pattern_that_fits_no_check_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"only=semisync\* fits none of the .* checks on cpu, such as syncs of a step, "
    ):
        check(config("device=cpu", "only=semisync*"))
    assert only_problems(config("device=cuda", "only=sync*")) == []


def test_losses_are_compared_by_step_and_at_the_end(tmp_path: Path) -> None:
    events = [
        TrainEvent(0, 1, 0.5, 1.0, {}),
        Evaluation("val", 0, 4, {"logloss": 9.0}),
        Evaluation("val", 0, 8, {"logloss": 0.4}),
    ]
    lines = [json.dumps(event_to_json(event)) + "\n" for event in events]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    expected = read_losses(tmp_path)
    assert expected == {"001": 0.5, "val": 0.4}
    assert largest_difference(expected, {"001": 0.5, "val": 0.5}) == pytest.approx(0.25)
    assert largest_difference(expected, {"001": float("nan"), "val": 0.4}) == float("inf")


def test_speed_and_waits_leave_most_of_the_time_to_the_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is theirs where nothing else is wanted."""
    deadlines: list[float] = []

    def run_none(_jobs: object, _command: object, _logs: object, deadline: float) -> dict[str, Result]:
        deadlines.append(deadline)
        return {}

    monkeypatch.setattr(module, "run_jobs", run_none)
    start, late = time.monotonic(), dict.fromkeys(("fp32", "bf16", "bf16 compiled"), OUT_OF_TIME)
    for only in ("*", "speed*"):
        work = Work(tmp_path, tmp_path, config("device=cpu", f"only={only}"), 2, start + 1000)
        assert {speed.name: speed.fault for speed in work.measure_speed()} == late
    shared, alone = deadlines
    assert start + 300 <= shared < start + 310
    assert alone == start + 1000


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "only"), [(1, "semi_sync, *"), (2, "resume: *"), (1, "speed fp32"), (1, "fp16 tables")]
)
def test_cases_lose_as_the_cpu_does(
    ranks: int, only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "examine", lambda timeout: [Finding("memory", State.OK, "enough")])
    findings = check(config("device=cpu", f"ranks={ranks}", f'only="{only}"', f"output={tmp_path}/out"))
    assert findings.outcomes or findings.speeds
    assert {outcome.state.value for outcome in findings.outcomes} <= {"ok"}
    assert all(0 < speed.floor_ms < speed.ms for speed in findings.speeds)
    page = (tmp_path / "out/gpu-check.html").read_text()
    assert "GPU check" in page
    assert (tmp_path / "out/gpu-check.md").read_text().startswith("**dlrm-gpu-check** on")
