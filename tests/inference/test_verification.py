"""The times of an export's calls are those of the fastest ones, and say where other programs took the cores."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlrm_app.inference import verification
from dlrm_app.inference.formats import Inputs

INPUTS: Inputs = (torch.zeros(1, 1), torch.zeros(0, dtype=torch.int32), torch.zeros(0, 1, dtype=torch.int32))


@pytest.mark.parametrize(("preempted", "is_busy"), [(2, False), (200, True)])
def test_one_call_in_five_is_undisturbed(
    monkeypatch: pytest.MonkeyPatch, preempted: int, is_busy: bool
) -> None:
    clock, calls = [0.0], [0]

    def run(_: Any) -> Any:
        clock[0] += 0.001 if calls[0] % 5 == 0 else 0.010
        calls[0] += 1

    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(verification.time, name, lambda: clock[0])
    usage = iter([SimpleNamespace(ru_nivcsw=7), SimpleNamespace(ru_nivcsw=7 + preempted)])
    monkeypatch.setattr(verification.resource, "getrusage", lambda _: next(usage))
    assert verification.time_calls(run, INPUTS) == (1.0, is_busy)
