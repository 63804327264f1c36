"""The times of an export's calls are those of the fastest ones."""

from typing import Any

import pytest
import torch

from dlrm_app.inference import verification
from dlrm_app.inference.formats import Inputs

INPUTS: Inputs = (torch.zeros(1, 1), torch.zeros(0, dtype=torch.int32), torch.zeros(0, 1, dtype=torch.int32))


def test_one_call_in_five_is_undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], [0]

    def run(_: Any) -> Any:
        clock[0] += 0.001 if calls[0] % 5 == 0 else 0.010
        calls[0] += 1

    monkeypatch.setattr(verification.time, "perf_counter", lambda: clock[0])
    assert verification.time_calls(run, INPUTS) == 1.0
