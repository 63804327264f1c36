"""What decides random numbers and the order of sums reaches torch, is saved and comes back, on each rank's GPU too."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from dlrm_app.config.train import TrainerConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.loss import multiplies_bf16
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.training import setup
from dlrm_app.training.setup import (
    cuda_random_states,
    set_deterministic,
    set_random_states,
    set_step_seed,
    with_choices,
)
from tests.loader.dataset_fixture import write_dataset
from tests.plain_training import compose_train
from tests.small_run import final_bytes, train_here

ON_GPU_1 = Runtime(rank=1, local_rank=1, world_size=2, local_world_size=2, device_type="cuda", num_threads=1)


@pytest.fixture
def as_before() -> object:
    yield
    set_deterministic(False)


def test_deterministic_reaches_torch_and_changes_nothing_on_cpu(
    as_before: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    write_dataset(tmp_path / "data", rows={"train": 300, "val": 100})
    keys = [f"data.path={tmp_path / 'data'}", "evaluation.group_by=c0", "evaluation.batch_size=64"]
    train_here(tmp_path / "usual", *keys)
    assert not torch.are_deterministic_algorithms_enabled()
    train_here(tmp_path / "fixed", *keys, "trainer.deterministic=true")
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert final_bytes(tmp_path / "fixed") == final_bytes(tmp_path / "usual")


def test_each_rank_and_step_draws_masks_of_its_own() -> None:
    """The same ones again when it is asked for the same step."""

    def drawn(step: int, rank: int) -> tuple[float, ...]:
        set_step_seed(7, step, rank)
        return tuple(torch.rand(4).tolist())

    assert len({drawn(step, rank) for step in range(5) for rank in range(4)}) == 20
    assert drawn(3, 1) == drawn(3, 1)


def test_each_ranks_generator_is_saved_and_comes_back() -> None:
    states = [torch.arange(16, dtype=torch.uint8) + rank for rank in range(2)]
    with (
        mock.patch("torch.cuda.get_rng_state", return_value=states[1]) as get,
        mock.patch("torch.cuda.set_rng_state") as restore,
        mock.patch.object(setup, "all_gather_objects", lambda state: [setup._to_text(states[0]), state]),
    ):
        saved = cuda_random_states(ON_GPU_1)
        get.assert_called_once_with(torch.device("cuda", 1))
        set_random_states(setup.random_state(), saved, ON_GPU_1)
        ((state, device), _) = restore.call_args
        assert torch.equal(state, states[1])
        assert device == torch.device("cuda", 1)
        set_random_states(setup.random_state(), saved, replace(ON_GPU_1, world_size=4, local_world_size=4))
        restore.assert_called_once()  # other ranks have other rows


def test_a_checkpoint_of_the_cpu_has_no_state_of_gpus(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", rows={"train": 300})
    train_here(tmp_path / "run", f"data.path={tmp_path / 'data'}")
    (saved,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert read_marker(saved).cuda_random_states == []


def choose(*settings: str, before: str | None = None, device: str = "cpu") -> TrainerConfig:
    """The trainer section with its choices made; ``before``: a setting of the run that is resumed."""
    runtime: Any = SimpleNamespace(device=torch.device(device), rank=0, is_first=True)
    run = None if before is None else compose_train(before)
    chosen: TrainerConfig = with_choices(compose_train(*settings), run, runtime).trainer
    return chosen


DCN = ["model=dcn", "trainer.precision=bf16"]


@pytest.mark.parametrize(
    ("settings", "device", "chosen", "why"),
    [
        (DCN, "cpu", True, "the sums of DCNv2's cross layers in bf16"),
        (["model=dcn"], "cpu", False, "dcn in fp32 is as fast without"),
        (["model=dlrm", "trainer.precision=bf16"], "cpu", False, "dlrm in bf16 is as fast without"),
        (DCN, "cuda", False, "has not been measured on GPUs"),
    ],
)
def test_compile_auto_goes_by_what_was_measured(
    settings: list[str],
    device: str,
    chosen: bool,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setup, "multiplies_bf16", lambda _: True)
    with caplog.at_level(logging.INFO):
        assert choose(*settings, "trainer.compile=auto", device=device).compile is chosen
    assert f"trainer.compile=auto: {str(chosen).lower()}, " in caplog.text
    assert why in caplog.text


@pytest.mark.parametrize(("device", "chosen"), [("cuda", True), ("cpu", False)])
def test_tf32_auto_is_for_gpus_and_says_nothing_on_cpu(
    device: str, chosen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert choose("experiment=small_clicks", device=device).tf32 is chosen
        assert choose("trainer.tf32=auto", before="trainer.tf32=false", device=device).tf32 is False
    assert ("trainer.tf32=auto: true" in caplog.text) == chosen


@pytest.mark.parametrize("has_units", [True, False])
def test_precision_auto_takes_bf16_where_the_device_has_units_for_it(
    has_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "multiplies_bf16", lambda _: has_units)
    assert choose("trainer.precision=auto").precision == ("bf16" if has_units else "fp32")


@pytest.mark.parametrize(("key", "values"), [("compile", (True, False)), ("precision", ("fp32", "bf16"))])
@pytest.mark.parametrize("has_units", [True, False])
def test_a_resumed_run_keeps_what_was_chosen_and_takes_what_is_asked_for(
    key: str, values: tuple[Any, Any], has_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "multiplies_bf16", lambda _: has_units)
    for kept, other in (values, reversed(values)):
        before = f"trainer.{key}={str(kept).lower()}"
        assert getattr(choose(*DCN, f"trainer.{key}=auto", before=before), key) == kept
        assert getattr(choose(f"trainer.{key}={str(other).lower()}", before=before), key) == other


def test_bf16_without_units_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup, "multiplies_bf16", lambda _: False)
    assert choose("trainer.precision=bf16").precision == "bf16"
    assert "no units for bf16 and emulates it" in caplog.text


@pytest.mark.parametrize("unit", ["avx512_bf16", "amx_bf16", "bf16"])
def test_units_are_told_by_what_the_cpu_can(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: True, "avx2": True})
    assert multiplies_bf16(cpu)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: False, "avx2": True})
    assert not multiplies_bf16(cpu)
