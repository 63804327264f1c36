"""What decides random numbers and the order of sums reaches torch, is saved and comes back, on each rank's GPU too."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.loss import multiplies_bf16
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.training import setup
from dlrm_app.training.loop import take_step
from dlrm_app.training.setup import cuda_random_states, set_random_states, set_step_seed
from dlrm_app.training.state import TrainingRun
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import final_bytes, train_here

ON_GPU_1 = Runtime(rank=1, local_rank=1, world_size=2, local_world_size=2, device_type="cuda", num_threads=1)


def test_deterministic_reaches_torch_and_changes_nothing_on_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    write_dataset(tmp_path / "data", rows={"train": 300, "val": 100})
    keys = [f"data.path={tmp_path / 'data'}", "evaluation.group_by=c0", "evaluation.batch_size=64"]
    train_here(tmp_path / "usual", *keys)
    assert not torch.are_deterministic_algorithms_enabled()
    seen: set[tuple[bool, str | None]] = set()

    def look(run: TrainingRun, *others: Any) -> None:
        seen.add((torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
        take_step(run, *others)

    monkeypatch.setattr("dlrm_app.training.loop.take_step", look)
    train_here(tmp_path / "fixed", *keys, "trainer.deterministic=true")
    assert seen == {(True, ":4096:8")}
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
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
        mock.patch.object(setup, "all_gather_objects", lambda state: [setup.state_text(states[0]), state]),
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


@pytest.mark.parametrize("unit", ["avx512_bf16", "amx_bf16", "bf16"])
def test_bf16_units_are_found_by_the_cpus_capabilities(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: True, "avx2": True})
    assert multiplies_bf16(cpu)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: False, "avx2": True})
    assert not multiplies_bf16(cpu)
