"""Which torch, fbgemm and torchrec fit together, judged from their versions alone."""

import pytest

from dlrm_app.doctor.report import State
from dlrm_app.doctor.versions import (
    FITTING,
    OTHERS,
    check_others,
    check_python,
    check_versions,
    find_fault,
    install_command,
    installed_versions,
    requirements_of_app,
)

CPU = {"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "torchrec": "1.8.0"}
CUDA = {"torch": "2.13.0", "fbgemm-gpu": "1.8.0", "torchrec": "1.8.0"}


@pytest.mark.parametrize(("versions", "has_driver"), [(CPU, False), (CPU, True), (CUDA, True)])
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
        ({**CPU, "fbgemm-gpu-cpu": "1.7.0"}, False, "fit, not torch 2.13, fbgemm 1.7.0"),
        ({**CPU, "torchrec": "1.6.1"}, False, "fit, not torch 2.13, fbgemm 1.8.0, torchrec 1.6.1"),
        (without(CPU, "torch"), False, "torch missing"),
        (without(CPU, "fbgemm-gpu-cpu"), False, "fbgemm missing"),
        ({}, False, "torch and torchrec and fbgemm missing"),
    ],
)
def test_what_does_not_fit_is_named_and_has_a_cure(versions, has_driver, reason):
    assert reason in find_fault(versions, has_driver)
    together = check_versions(versions, has_driver)[-1]
    assert together.state is State.WRONG
    assert together.fix == install_command("cuda" if has_driver else "cpu")


def test_an_unused_gpu_is_worth_a_note():
    together = check_versions(CPU, has_driver=True)[-1]
    assert together.state is State.NOTE
    assert "fbgemm-gpu==1.8.0" in together.fix


def test_the_cure_for_cpu_never_lets_torchrec_pull_the_cuda_build():
    first, second, last = install_command("cpu").split(" && ")
    assert "uninstall" in first
    assert "torch==2.13.0+cpu" in second
    assert "--no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0" in last


def test_the_versions_that_fit_are_those_of_the_projects_metadata():
    pins = {name.removesuffix("-gpu"): text.split("==")[-1] for name, text in requirements_of_app().items()}
    assert {name: pins[name].removesuffix(".*") for name in FITTING} == FITTING


def test_installed_versions_are_found_under_normalized_names():
    versions = installed_versions()
    assert "hydra-core" in versions
    assert not any("_" in name for name in versions)


def test_a_missing_library_is_named_with_the_command_that_installs_the_version_asked_for():
    versions = {name: "1.0" for name in OTHERS if name != "torchmetrics"}
    present, missing = check_others(versions, requirements_of_app())
    assert present.state is State.OK
    assert (missing.check, missing.state) == ("torchmetrics", State.WRONG)
    assert missing.fix.endswith("pip install 'torchmetrics==1.0.3'")


@pytest.mark.parametrize(
    ("python", "state"), [((3, 9), "WRONG"), ((3, 10), "ok"), ((3, 13), "ok"), ((3, 14), "WRONG")]
)
def test_the_pythons_that_have_wheels_are_accepted(python, state):
    assert check_python(python).state.value == state
