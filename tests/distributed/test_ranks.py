"""What a rank computes on: a driver without a usable GPU is refused, unless the CPU was asked for."""

import pytest
import torch

from dlrm_app.distributed import ranks
from dlrm_app.distributed.ranks import has_gpu, started_ranks
from dlrm_app.errors import ConfigError
from dlrm_app.machine import Driver

OLD = Driver("/proc/driver/nvidia is there", "535.183.01", (12, 2))
NEW = Driver("/proc/driver/nvidia is there", "580.65.06", (13, 0))


@pytest.fixture(autouse=True)
def cuda_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed is made for GPUs, and none of them is hidden."""

    def find(name: str) -> str:
        if name == "fbgemm-gpu-cpu":
            raise ranks.PackageNotFoundError(name)
        return "1.8.0"

    monkeypatch.setattr(ranks, "version", find)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def fail() -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)


def test_without_a_driver_it_is_the_cpu_and_with_a_gpu_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not has_gpu(None)
    assert has_gpu(NEW)


def test_a_driver_that_is_too_old_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "The NVIDIA driver on your system is too old (found version 12020).")
    monkeypatch.setattr(ranks, "find_driver", lambda: OLD)
    with pytest.raises(ConfigError) as refusal:
        started_ranks()
    for part in ("535.183.01", "at least 580", "dlrm-doctor", "CUDA_VISIBLE_DEVICES="):
        assert part in str(refusal.value)


def test_a_driver_without_a_device_is_refused_with_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "No CUDA GPUs are available")
    with pytest.raises(ConfigError, match="torch sees no GPU: No CUDA GPUs are available"):
        has_gpu(NEW)


def test_a_torch_for_cpu_under_an_fbgemm_for_gpus_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the finding has it: an index with 2.13.0+cpu."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="there is an NVIDIA driver"):
        has_gpu(NEW)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_ask_for_the_cpu(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not has_gpu(OLD)


def test_wheels_for_cpu_ask_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "version", lambda name: "1.8.0")
    assert not has_gpu(OLD)
