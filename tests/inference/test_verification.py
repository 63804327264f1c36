"""Which losses of AUC are refused; times of the fastest calls, and of calls while other programs use the cores."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlrm_app.errors import DlrmError
from dlrm_app.evaluation.intervals import compare_aucs
from dlrm_app.inference import verification
from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.record import Verification
from dlrm_app.inference.verification import refuse_loss
from tests.scored import scored

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


def loss_and_refusal(
    num_rows: int, noise: float, seed: int, max_auc_loss: float = 0.0005
) -> tuple[float, bool]:
    """(AUC lost, True if the file is refused), with ``noise`` added to the logits of random rows."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, generator=draw)
    labels = torch.rand(num_rows, generator=draw) < logits.sigmoid()
    found = compare_aucs(scored(logits, labels), logits + noise * torch.randn(num_rows, generator=draw), 0.95)
    lost, (before, after) = found.difference, (found.first.value, found.second.value)
    proof = Verification(
        "model.ts",
        "test",
        num_rows,
        0,
        0,
        before,
        after,
        lost.value,
        lost.low,
        lost.high,
        found.p_value,
        0,
        {},
    )
    try:
        refuse_loss(proof, max_auc_loss)
    except DlrmError:
        return lost.value, True
    return lost.value, False


def test_a_file_of_few_rows_is_not_refused_for_what_chance_does() -> None:
    """One in four of these loses more than the bound, by a few pairs of rows: at most one in 40 is refused."""
    found = [loss_and_refusal(200, 0.01, seed) for seed in range(200)]
    beyond = sum(lost > 0.0005 for lost, _ in found)
    refused = sum(is_refused for _, is_refused in found)
    assert beyond > 30
    assert refused <= 200 / 40


@pytest.mark.parametrize(("num_rows", "noise"), [(200, 100.0), (100_000, 0.06), (100_000, 0.2)])
def test_a_loss_beyond_chance_is_refused(num_rows: int, noise: float) -> None:
    """A file of noise alone by few rows; by many rows, whatever loses more than the bound, by however little."""
    found = [loss_and_refusal(num_rows, noise, seed) for seed in range(4)]
    assert [is_refused for _, is_refused in found] == [lost > 0.0005 for lost, _ in found]
    assert any(is_refused for _, is_refused in found)
