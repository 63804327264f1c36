"""trainer.precision: what is chosen, what is kept by a run that goes on, and what is warned of."""

import pytest
import torch

from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.model import precision
from dlrm_app.training import precision_choice
from dlrm_app.training.precision_choice import with_precision
from tests.plain_training import compose_train


def choose(asked: str, before: str | None = None) -> str:
    with start_runtime(num_threads=1) as runtime:
        run = None if before is None else compose_train(f"trainer.precision={before}")
        return with_precision(compose_train(f"trainer.precision={asked}"), run, runtime).trainer.precision


@pytest.mark.parametrize(("has_units", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_auto_takes_bf16_where_the_device_has_units_for_it(
    monkeypatch: pytest.MonkeyPatch, has_units: bool, chosen: str
) -> None:
    monkeypatch.setattr(precision_choice, "multiplies_bf16", lambda _: has_units)
    assert choose("auto") == chosen


@pytest.mark.parametrize("kept", ["fp32", "bf16"])
@pytest.mark.parametrize("has_units", [True, False])
def test_auto_keeps_what_the_run_had_on_any_machine(
    monkeypatch: pytest.MonkeyPatch, has_units: bool, kept: str
) -> None:
    monkeypatch.setattr(precision_choice, "multiplies_bf16", lambda _: has_units)
    assert choose("auto", before=kept) == kept


def test_what_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_choice, "multiplies_bf16", lambda _: True)
    assert choose("fp32", before="bf16") == "fp32"
    assert choose("bf16", before="fp32") == "bf16"


def test_bf16_without_units_is_warned_of_with_what_it_costs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision_choice, "multiplies_bf16", lambda _: False)
    monkeypatch.setattr(precision_choice, "bf16_slowdown", lambda _: 17.2)
    assert choose("bf16") == "bf16"
    assert "no units for bf16, whose products take 17 times as long there as fp32's" in caplog.text


@pytest.mark.parametrize("unit", ["avx512_bf16", "amx_bf16", "bf16"])
def test_units_are_told_by_what_the_cpu_can(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: True, "avx2": True})
    assert precision.multiplies_bf16(cpu)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: False, "avx2": True})
    assert not precision.multiplies_bf16(cpu)


def test_the_slowdown_is_a_ratio_of_times() -> None:
    assert 0 < precision.bf16_slowdown(torch.device("cpu")) < 1000
