"""scripts/setup.py chooses wheels that fit the machine; the installer and machines are replaced by stand-ins."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dlrm_setup", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dlrm_setup"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


setup = load_setup()


def machine(python=(3, 11), system="linux", processor="x86_64", driver=None):
    return setup.Machine(python, system, processor, driver)


@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_without_a_driver_the_cpu_wheels_are_chosen(minor):
    choice = setup.choose(machine(python=(3, minor)))
    assert choice.device == "cpu"
    assert "no NVIDIA driver" in choice.reason


def test_a_driver_chooses_cuda_wheels_and_the_reason_names_it():
    choice = setup.choose(machine(driver=setup.Driver("libcuda.so.1 can be loaded", cuda=(13, 0))))
    assert choice.device == "cuda"
    assert "libcuda.so.1" in choice.reason


OLD = setup.Driver("/proc/driver/nvidia is there", "535.183.01", (12, 2))


def test_a_too_old_driver_is_refused_with_every_cure():
    with pytest.raises(setup.SetupError) as refusal:
        setup.choose(machine(driver=OLD))
    assert "535.183.01" in str(refusal.value)
    assert "at least 580" in str(refusal.value)
    for way in ("make setup DEVICE=cpu", "make setup DEVICE=cu126", "cuda-compat-13-0"):
        assert way in str(refusal.value)


@pytest.mark.parametrize(("device", "driver"), [("cpu", OLD), ("cuda", OLD), ("cuda", None), ("cu126", OLD)])
def test_the_users_choice_wins_over_the_detected_one(device, driver):
    assert setup.choose(machine(driver=driver), device).device == device


def test_arm_gets_cpu_wheels_even_with_a_driver():
    driver = setup.Driver("nvidia-smi is on the path")
    assert setup.choose(machine(processor="aarch64", driver=driver)).device == "cpu"
    with pytest.raises(setup.SetupError, match="DEVICE=cpu"):
        setup.choose(machine(processor="aarch64"), "cuda")
    with pytest.raises(setup.SetupError, match="DEVICE=cpu"):
        setup.choose(machine(processor="aarch64"), "cu126")


@pytest.mark.parametrize("python", [(3, 9), (3, 15)])
def test_a_python_without_wheels_is_refused_naming_another(python, monkeypatch):
    monkeypatch.setattr(setup.shutil, "which", lambda name: name == "python3.12")
    with pytest.raises(setup.SetupError) as refusal:
        setup.choose(machine(python=python))
    assert f"Python 3.{python[1]}" in str(refusal.value)
    assert "make setup PYTHON=python3.12" in str(refusal.value)


def test_other_systems_than_linux_are_refused():
    with pytest.raises(setup.SetupError, match="darwin"):
        setup.choose(machine(system="darwin"))


REQUIREMENTS = [
    "torch>=2.13,<2.15",
    "fbgemm-gpu>=1.8.0,<=1.9.0",
    "torchrec>=1.8.0,<=1.9.2",
    "numpy>=1.26",
    "pytest>=8; extra == 'dev'",
    'polars>=1; extra == "bench"',
]


OLDER = setup.Trio("2.13.0", "1.8.0", "1.8.0")
NEWER = setup.Trio("2.14.1", "1.9.0", "1.9.2")
LAST = setup.Trio("2.11.0", "1.6.0", "1.6.1")


class Sources:
    """Stands in for the installer: records what it is to install, and lacks some torches in some places."""

    python = Path("python")

    def __init__(self, *lacking):
        self.lacking, self.installed = lacking, []

    def install(self, *arguments, index=None, may_lack=None):
        if (index or "configured", may_lack) in self.lacking:
            return False
        self.installed.append([*([index] if index else []), *arguments])
        return True


def install_with(sources, monkeypatch, trios, device="cpu", requirements=REQUIREMENTS, extras=()):
    """What was installed after the project itself: torch, then the rest, then torchrec."""
    monkeypatch.setattr(setup, "read_requirements", lambda python: requirements)
    setup.install_all(sources, device, extras, list(trios))
    return sources.installed[1:]


def test_a_cpu_wheel_is_taken_from_the_configured_sources_and_never_fbgemms_cuda_build(monkeypatch):
    assert install_with(Sources(), monkeypatch, [OLDER], extras=["dev"]) == [
        ["--no-deps", "torch==2.13.0+cpu"],
        ["torch==2.13.0+cpu", "fbgemm-gpu-cpu==1.8.0", "numpy>=1.26", "pytest>=8"],
        ["--no-deps", "torchrec==1.8.0"],
    ]


def test_every_requirement_of_torchrec_is_named(monkeypatch):
    """torchrec comes without its dependencies, so the project must name each of them itself."""
    from importlib.metadata import requires

    installed = install_with(Sources(), monkeypatch, [OLDER], requirements=requires("dlrm-app"))
    names = {requirement_name(text) for text in installed[1]}
    asked = {requirement_name(text) for text in requires("torchrec") if "extra" not in text}
    assert asked - {"fbgemm-gpu"} <= names
    assert {"torch", "fbgemm-gpu-cpu", "iopath"} <= names
    assert "fbgemm-gpu" not in names


def requirement_name(text):
    return setup.re.match(r"[\w.-]+", text).group().lower()


NEW_CPU, OLD_CPU = "torch==2.14.1+cpu", "torch==2.13.0+cpu"
PYTORCH = setup.PYTORCH_CPU_INDEX


@pytest.mark.parametrize(
    ("lacking", "taken"),
    [
        ([], NEWER),
        ([("configured", NEW_CPU)], OLDER),  # it is nearer, and smaller than the CUDA build
        ([("configured", NEW_CPU), ("configured", OLD_CPU)], NEWER),
        ([("configured", NEW_CPU), ("configured", OLD_CPU), (PYTORCH, NEW_CPU)], OLDER),
    ],
)
def test_the_nearest_source_gives_its_newest_whole_trio(lacking, taken, monkeypatch):
    installed = install_with(Sources(*lacking), monkeypatch, [NEWER, OLDER])
    assert installed[-2][:2] == [f"torch=={taken.torch}+cpu", f"fbgemm-gpu-cpu=={taken.fbgemm}"]
    assert installed[-1] == ["--no-deps", f"torchrec=={taken.torchrec}"]


def test_pytorchs_index_gives_only_torch_where_others_lack_it(monkeypatch):
    installed = install_with(Sources(("configured", OLD_CPU)), monkeypatch, [OLDER])
    assert [PYTORCH in arguments for arguments in installed] == [True, False, False]


NO_CPU_BUILD = [("configured", OLD_CPU), (PYTORCH, OLD_CPU)]


def test_without_a_cpu_wheel_the_cuda_one_is_called_large(monkeypatch, capsys):
    installed = install_with(Sources(*NO_CPU_BUILD), monkeypatch, [OLDER])
    assert installed[0] == ["--no-deps", "torch==2.13.0"]
    assert "several GB larger" in capsys.readouterr().out


def test_a_wheel_that_is_nowhere_ends_in_a_message_with_the_cure(monkeypatch):
    with pytest.raises(setup.SetupError, match="PIP_FIND_LINKS"):
        install_with(Sources(*NO_CPU_BUILD, ("configured", "torch==2.13.0")), monkeypatch, [OLDER])


def test_asked_trio_wins_over_installed_over_newest():
    assert setup.find_trios("cpu", "auto", {}) == list(setup.TRIOS)
    assert setup.find_trios("cuda", "auto", {"trio": "2.13"}) == [OLDER]
    assert setup.find_trios("cuda", "2.14", {"trio": "2.13"}) == [NEWER]
    assert setup.find_trios("cpu", "auto", {"trio": "2.11"}) == [LAST]
    of_an_older_release_of_ours = {"trio": "2.9"}
    assert setup.find_trios("cpu", "auto", of_an_older_release_of_ours) == list(setup.TRIOS)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_old_trio_is_taken_by_name_alone(device, monkeypatch):
    """pyproject.toml's ranges, which rule it out for pip, do not count then."""
    assert LAST not in setup.find_trios(device, "auto", {})
    assert setup.find_trios(device, "2.11", {}) == [LAST]
    assert (
        install_with(Sources(), monkeypatch, [LAST], device)[1:]
        == {
            "cpu": [
                ["torch==2.11.0+cpu", "fbgemm-gpu-cpu==1.6.0", "numpy>=1.26"],
                ["--no-deps", "torchrec==1.6.1"],
            ],
            "cuda": [
                ["torch===2.11.0", "fbgemm-gpu==1.6.0", "numpy>=1.26"],
                ["--no-deps", "torchrec==1.6.1"],
            ],
        }[device]
    )


def test_cuda_12_gets_the_older_trio_from_pytorchs_index(monkeypatch):
    assert setup.find_trios("cu126", "auto", {"trio": "2.14"}) == [OLDER]
    with pytest.raises(setup.SetupError, match=r"only TRIO=2\.13"):
        setup.find_trios("cu126", "2.14", {})
    index = setup.PYTORCH_CU126_INDEX
    assert install_with(Sources(), monkeypatch, [OLDER], "cu126") == [
        [index, "--no-deps", "torch==2.13.0+cu126"],
        [index, "torch==2.13.0+cu126", "fbgemm-gpu==1.8.0+cu126", "numpy>=1.26"],
        ["--no-deps", "torchrec==1.8.0"],
    ]


PLAIN, CUDA_13 = "torch===2.13.0", "torch==2.13.0+cu130"


@pytest.mark.parametrize(("lacking", "taken"), [([], PLAIN), ([("configured", PLAIN)], CUDA_13)])
def test_a_torch_for_cpu_or_another_cuda_is_never_taken_for_the_newer_one(lacking, taken, monkeypatch):
    """pip holds 2.13.0+cu126 for newer than 2.13.0, and fbgemm-gpu links CUDA 13."""
    installed = install_with(Sources(*lacking), monkeypatch, [OLDER], "cuda")
    assert installed[0] == ["--no-deps", taken]
    assert installed[1][:2] == [taken, "fbgemm-gpu==1.8.0"]


def test_sources_without_a_torch_for_cuda_are_refused_with_a_cure(monkeypatch):
    with pytest.raises(setup.SetupError, match="pip config list"):
        install_with(Sources(("configured", PLAIN), ("configured", CUDA_13)), monkeypatch, [OLDER], "cuda")


@pytest.fixture
def installs(monkeypatch):
    """What set_up installs, on a machine without a driver."""
    steps = []
    monkeypatch.setattr(setup, "look_at_machine", machine)
    monkeypatch.setattr(setup, "make_venv", lambda venv, version: venv / "bin" / "python")
    monkeypatch.setattr(setup, "output", lambda command: steps.append(command[-2:]))
    monkeypatch.setattr(setup, "Installer", lambda python: None)

    def install(installer, device, extras, trios):
        steps.append((extras, [trio.name for trio in trios]))
        return trios[-1]

    monkeypatch.setattr(setup, "install_all", install)
    return steps


BOTH_BUILDS = ["fbgemm-gpu", "fbgemm-gpu-cpu"]


def test_both_builds_of_fbgemm_are_uninstalled_when_the_device_changes(tmp_path, installs):
    """They share a folder."""
    for device in ("cpu", "cuda", "cuda", "cu126"):
        setup.set_up(tmp_path, device, [], "2.13")
    steps = [step == BOTH_BUILDS for step in installs]
    assert steps == [True, False, True, False, True, False]


def test_nothing_is_done_twice(tmp_path, installs, capsys):
    setup.set_up(tmp_path, "auto", ["dev"])
    assert installs.pop(0) == BOTH_BUILDS
    setup.set_up(tmp_path, "auto", ["dev"])
    assert installs == [(["dev"], ["2.14", "2.13"])]
    assert "up to date" in capsys.readouterr().out
    setup.set_up(tmp_path, "auto", ["dev", "bench"])
    setup.set_up(tmp_path, "auto", ["dev"])
    assert installs[1:] == [(["bench", "dev"], ["2.13"])]
    setup.set_up(tmp_path, "auto", ["dev"], "2.13")
    setup.set_up(tmp_path, "auto", ["dev"], "2.14")
    setup.set_up(tmp_path, "auto", ["dev"])
    assert installs[2:] == [(["bench", "dev"], ["2.14"])]


@pytest.mark.usefixtures("installs")
def test_a_set_up_that_fails_half_way_is_not_taken_for_done(tmp_path, monkeypatch):
    def fail(*arguments):
        raise setup.SetupError("pip failed")

    monkeypatch.setattr(setup, "install_all", fail)
    (tmp_path / setup.STAMP).write_text(json.dumps({"sources": "an older pyproject.toml"}))
    with pytest.raises(setup.SetupError):
        setup.set_up(tmp_path, "auto", [])
    assert not (tmp_path / setup.STAMP).exists()
