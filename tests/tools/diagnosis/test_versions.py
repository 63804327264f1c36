"""Which torch, fbgemm and torchrec fit together, judged from their versions alone."""

import re
from pathlib import Path

import pytest

from dlrm_app.machine import TRIOS
from dlrm_app.tools.diagnosis.examine import (
    State,
    check_versions,
    find_fault,
    install_command,
    installed_versions,
    nearest_trio,
)

CPU = {"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "torchrec": "1.8.0"}
CUDA = {"torch": "2.13.0", "fbgemm-gpu": "1.8.0", "torchrec": "1.8.0"}
THREE = ("torch", "fbgemm-gpu", "torchrec")
OLD = {"torch": "2.11.0+cu130", "fbgemm-gpu": "1.6.0", "torchrec": "1.6.1"}
NEWER = {"torch": "2.14.1+cpu", "fbgemm-gpu-cpu": "1.9.0", "torchrec": "1.9.2"}


@pytest.mark.parametrize(
    ("versions", "has_driver"),
    [
        (CPU, False),
        (CPU, True),
        (CUDA, True),
        (NEWER, False),
        (OLD, True),
        ({**NEWER, "torch": "2.14.0"}, False),
    ],
)
def test_the_pairs_that_are_built_for_each_other_fit(versions, has_driver):
    assert find_fault(versions, has_driver) is None


def without(versions, name):
    return {key: version for key, version in versions.items() if key != name}


@pytest.mark.parametrize(
    ("versions", "has_driver", "reason"),
    [
        ({**CPU, "fbgemm-gpu": "1.8.0"}, True, "both installed"),
        (CUDA, False, "needs an NVIDIA driver"),
        ({**CUDA, "torch": "2.13.0+cpu"}, True, "built for CUDA 13, this torch for cpu"),
        ({**CUDA, "torch": "2.13.0+cu126"}, True, "built for CUDA 13, this torch for cu126"),
        ({**CPU, "torch": "2.12.0+cpu"}, False, "fit, not torch 2.12, fbgemm 1.8.0"),
        ({**CPU, "torch": "2.14.1+cpu"}, False, "fit, not torch 2.14, fbgemm 1.8.0"),
        ({**NEWER, "torchrec": "1.8.0"}, False, "fit, not torch 2.14, fbgemm 1.9.0, torchrec 1.8.0"),
        ({**CPU, "fbgemm-gpu-cpu": "1.7.0"}, False, "fit, not torch 2.13, fbgemm 1.7.0"),
        ({**CPU, "torchrec": "1.6.1"}, False, "fit, not torch 2.13, fbgemm 1.8.0, torchrec 1.6.1"),
        (without(CPU, "torch"), False, "torch missing"),
        (without(CPU, "fbgemm-gpu-cpu"), False, "fbgemm missing"),
        ({}, False, "torch and torchrec and fbgemm missing"),
    ],
)
def test_versions_that_do_not_fit_are_named_with_a_cure(versions, has_driver, reason):
    assert reason in find_fault(versions, has_driver)
    together = check_versions(versions, has_driver)[-1]
    assert together.state is State.WRONG
    assert together.fix == install_command("cuda" if has_driver else "cpu", nearest_trio(versions))


def test_an_unused_gpu_is_worth_a_note():
    together = check_versions(CPU, has_driver=True)[-1]
    assert together.state is State.NOTE
    assert "fbgemm-gpu==1.8.0" in together.fix


def test_a_trio_that_runs_with_less_is_worth_a_note():
    together = check_versions(OLD, has_driver=True)[-1]
    assert together.state is State.NOTE
    assert "trainer.pipeline=prefetch refuses GPUs" in together.result
    assert nearest_trio(OLD).name == "2.11"


def test_the_cpu_cure_never_pulls_the_cuda_build():
    first, second, last = install_command("cpu", nearest_trio(CPU)).split(" && ")
    assert "uninstall" in first
    assert "torch==2.13.0+cpu" in second
    assert "--no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0" in last


def test_the_cure_keeps_to_the_trio_of_the_installed_torch():
    assert nearest_trio(CPU).name == "2.13"
    assert (
        nearest_trio(NEWER).name == nearest_trio({}).name == nearest_trio({"torch": "2.1.0"}).name == "2.14"
    )


def test_pip_may_take_the_newest_trio_and_keep_the_oldest():
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    ranges = {name: re.search(rf'"{name}>=([\d.]+),<=?([\d.]+)"', text).groups() for name in THREE}
    oldest, newest = TRIOS[-1], TRIOS[0]
    assert ranges["torch"] == (oldest.name, f"2.{int(newest.name.split('.')[1]) + 1}")
    assert ranges["fbgemm-gpu"] == (oldest.fbgemm, newest.fbgemm)
    assert ranges["torchrec"] == (oldest.torchrec, newest.torchrec)


def test_a_build_for_cuda_12_wants_a_torch_for_it(monkeypatch):
    monkeypatch.setattr("dlrm_app.machine.version", lambda name: "1.8.0+cu126")
    fbgemm = {**CUDA, "fbgemm-gpu": "1.8.0+cu126"}
    assert find_fault({**fbgemm, "torch": "2.13.0+cu126"}, True) is None
    assert "built for CUDA 12, this torch for cu130" in find_fault({**fbgemm, "torch": "2.13.0+cu130"}, True)


def test_installed_versions_are_found_under_normalized_names():
    versions = installed_versions()
    assert "hydra-core" in versions
    assert not any("_" in name for name in versions)
