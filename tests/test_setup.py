"""scripts/setup.py chooses wheels that fit the machine; pip and machines are replaced by stand-ins."""

import importlib.util
import json
import subprocess
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
def test_what_the_user_asks_for_wins_over_what_is_seen(device, driver):
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


def test_the_cpu_plan_never_pulls_fbgemms_cuda_build():
    plan = setup.plan_for_cpu(REQUIREMENTS, ["dev"], OLDER)
    assert plan.resolved == ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "numpy>=1.26", "pytest>=8"]
    assert plan.bare == ["torchrec==1.8.0"]


def test_the_plan_names_every_requirement_of_torchrec():
    """torchrec comes without its dependencies, so the project must name each of them itself."""
    from importlib.metadata import requires

    plan = setup.plan_for_cpu(requires("dlrm-app"), ["dev"], OLDER)
    names = {requirement_name(text) for text in plan.resolved}
    asked = {requirement_name(text) for text in requires("torchrec") if "extra" not in text}
    assert asked - {"fbgemm-gpu"} <= names
    assert {"torch", "fbgemm-gpu-cpu", "iopath"} <= names
    assert "fbgemm-gpu" not in names


def requirement_name(text):
    return setup.re.match(r"[\w.-]+", text).group().lower()


@pytest.mark.parametrize(
    ("versions", "device", "misfits"),
    [
        ({}, "cpu", []),
        ({"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0"}, "cpu", []),
        ({"torch": "2.13.0", "fbgemm-gpu": "1.8.0"}, "cuda", []),
        ({"torch": "2.13.0", "fbgemm-gpu": "1.8.0"}, "cpu", ["fbgemm-gpu"]),
        ({"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0"}, "cuda", ["torch", "fbgemm-gpu-cpu"]),
        ({"torch": "2.13.0+cu126", "fbgemm-gpu": "1.8.0"}, "cuda", ["torch"]),
        ({"torch": "2.13.0+cu130", "fbgemm-gpu": "1.8.0"}, "cuda", []),
        ({"torch": "2.13.0+cu126", "fbgemm-gpu": "1.8.0+cu126"}, "cuda", ["torch", "fbgemm-gpu"]),
        ({"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0"}, "cu126", ["fbgemm-gpu-cpu"]),
        (
            {"torch": "2.13.0+cpu", "fbgemm-gpu": "1.8.0", "fbgemm-gpu-cpu": "1.8.0"},
            "cpu",
            ["fbgemm-gpu", "fbgemm-gpu-cpu"],
        ),
    ],
)
def test_the_builds_for_another_device_are_uninstalled_first(versions, device, misfits):
    assert setup.find_misfits(versions, device) == misfits


class FakePip:
    """Stands in for subprocess.run: records pip's arguments, and fails like pip for the sources that lack torch."""

    def __init__(self, lacking=(), error="No matching distribution found for {torch}"):
        self.lacking, self.error, self.commands = lacking, error, []

    def __call__(self, command, **options):
        arguments = command[6:]
        self.commands.append(arguments)
        torch = arguments[-1]
        is_torch = torch.startswith("torch==")
        source = "pytorch" if setup.PYTORCH_CPU_INDEX in arguments else "configured"
        if is_torch and (source, torch) in self.lacking:
            return subprocess.CompletedProcess(command, 1, "", f"ERROR: {self.error.format(torch=torch)}")
        return subprocess.CompletedProcess(command, 0, "", "")


CONFIGURED_CPU = ("configured", "torch==2.13.0+cpu")
PYTORCH_CPU = ("pytorch", "torch==2.13.0+cpu")
CONFIGURED_ANY = ("configured", "torch==2.13.0")


def install_with(pip, monkeypatch, trios=(OLDER,)):
    """pip's commands after the project's own installation: those for torch, then the rest, then torchrec."""
    monkeypatch.setattr(setup.subprocess, "run", pip)
    monkeypatch.setattr(setup, "read_requirements", lambda python: REQUIREMENTS)
    setup.install_for_cpu(Path("python"), [], list(trios))
    return pip.commands[1:]


def test_a_cpu_wheel_is_taken_from_the_configured_sources(monkeypatch):
    assert install_with(FakePip(), monkeypatch) == [
        ["--no-deps", "torch==2.13.0+cpu"],
        ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "numpy>=1.26"],
        ["--no-deps", "torchrec==1.8.0"],
    ]


@pytest.mark.parametrize(
    ("lacking", "taken"),
    [
        ([], NEWER),
        ([("configured", "torch==2.14.1+cpu")], OLDER),  # it is nearer, and smaller than the CUDA build
        ([("configured", "torch==2.14.1+cpu"), CONFIGURED_CPU], NEWER),
        ([(source, "torch==2.14.1+cpu") for source in ("configured", "pytorch")] + [CONFIGURED_CPU], OLDER),
    ],
)
def test_the_nearest_source_gives_its_newest_whole_trio(lacking, taken, monkeypatch):
    commands = install_with(FakePip(lacking), monkeypatch, [NEWER, OLDER])
    assert commands[-2][:2] == [f"torch=={taken.torch}", f"fbgemm-gpu-cpu=={taken.fbgemm}"]
    assert commands[-1] == ["--no-deps", f"torchrec=={taken.torchrec}"]


def test_asked_trio_wins_over_installed_over_newest():
    assert setup.find_trios("cpu", "auto", {}) == list(setup.TRIOS)
    assert setup.find_trios("cuda", "auto", {"trio": "2.13"}) == [OLDER]
    assert setup.find_trios("cuda", "2.14", {"trio": "2.13"}) == [NEWER]
    assert setup.find_trios("cpu", "auto", {"trio": "2.11"}) == [LAST]
    assert setup.find_trios("cpu", "auto", {"trio": "2.9"}) == list(
        setup.TRIOS
    )  # of an older release of ours


def test_an_old_trio_is_taken_by_name_alone(monkeypatch):
    """Whatever the device; pyproject.toml's ranges, which rule it out for pip, do not count then."""
    assert not {LAST} & {*setup.find_trios("cpu", "auto", {}), *setup.find_trios("cuda", "auto", {})}
    assert setup.find_trios("cpu", "2.11", {}) == setup.find_trios("cuda", "2.11", {}) == [LAST]
    commands = install_with(FakePip(), monkeypatch, [LAST])
    assert commands[1] == ["torch==2.11.0", "fbgemm-gpu-cpu==1.6.0", "numpy>=1.26"]
    monkeypatch.setattr(setup, "installed_versions", lambda python: {"torch": "2.11.0+cu130"})
    monkeypatch.setattr(setup.subprocess, "run", pip := FakePip())
    setup.install_for_cuda(Path("python"), [], LAST)
    assert pip.commands == [
        ["--no-deps", "-e", str(setup.ROOT)],
        ["numpy>=1.26", "torch==2.11.0", "fbgemm-gpu==1.6.0", "torchrec==1.6.1"],
    ]


def test_cuda_12_gets_the_older_trio_from_pytorchs_index(monkeypatch):
    assert setup.find_trios("cu126", "auto", {"trio": "2.14"}) == [OLDER]
    with pytest.raises(setup.SetupError, match=r"only TRIO=2\.13"):
        setup.find_trios("cu126", "2.14", {})
    pip = FakePip()
    monkeypatch.setattr(setup.subprocess, "run", pip)
    setup.install_for_cu126(Path("python"), ["dev"], OLDER)
    [command] = pip.commands
    assert command[:2] == ["--extra-index-url", setup.PYTORCH_CU126_INDEX]
    assert command[-3:] == ["torch==2.13.0+cu126", "fbgemm-gpu==1.8.0+cu126", "torchrec==1.8.0"]


def test_pytorchs_index_gives_only_torch_where_others_lack_it(monkeypatch):
    commands = install_with(FakePip([CONFIGURED_CPU]), monkeypatch)
    assert [setup.PYTORCH_CPU_INDEX in command for command in commands] == [False, True, False, False]


def test_without_a_cpu_wheel_the_cuda_one_is_called_large(monkeypatch, capsys):
    commands = install_with(FakePip([CONFIGURED_CPU, PYTORCH_CPU]), monkeypatch)
    assert commands[2] == ["--no-deps", "torch==2.13.0"]
    assert "several GB larger" in capsys.readouterr().out


def test_a_wheel_that_is_nowhere_ends_in_a_message_with_the_cure(monkeypatch):
    with pytest.raises(setup.SetupError, match="PIP_FIND_LINKS"):
        install_with(FakePip([CONFIGURED_CPU, PYTORCH_CPU, CONFIGURED_ANY]), monkeypatch)


def test_a_wheel_excluded_by_a_pip_constraint_is_lacking(monkeypatch):
    conflict = "Cannot install {torch} because these package versions have conflicting dependencies."
    commands = install_with(
        FakePip([("configured", "torch==2.14.1+cpu")], conflict), monkeypatch, [NEWER, OLDER]
    )
    assert commands[-2][0] == f"torch=={OLDER.torch}"


def test_another_failure_of_pip_is_shown_as_it_is(monkeypatch):
    with pytest.raises(setup.SetupError, match="No space left"):
        install_with(FakePip([CONFIGURED_CPU], error="OSError: No space left on device"), monkeypatch)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ("2.13.0", []),
        ("2.13.0+cu130", []),
        ("2.13.0+cu126", ["torch===2.13.0"]),
        ("2.13.0+cpu", ["torch===2.13.0"]),
    ],
)
def test_a_torch_for_another_cuda_that_pip_preferred_is_replaced(taken, expected, monkeypatch):
    """pip holds 2.13.0+cu126 for newer than 2.13.0, and fbgemm-gpu links CUDA 13."""
    pip = FakePip()
    monkeypatch.setattr(setup.subprocess, "run", pip)
    monkeypatch.setattr(setup, "installed_versions", lambda python: {"torch": taken})
    monkeypatch.setattr(setup, "read_requirements", lambda python: REQUIREMENTS)
    setup.install_for_cuda(Path("python"), [], OLDER)
    assert pip.commands[1][-3:] == ["torch==2.13.0", "fbgemm-gpu==1.8.0", "torchrec==1.8.0"]
    assert [arguments[-1] for arguments in pip.commands[2:]] == expected


def test_only_another_cudas_torch_is_refused_with_a_cure(monkeypatch):
    monkeypatch.setattr(setup.subprocess, "run", FakePip([("configured", "torch===2.13.0")]))
    monkeypatch.setattr(setup, "installed_versions", lambda python: {"torch": "2.13.0+cu126"})
    monkeypatch.setattr(setup, "read_requirements", lambda python: REQUIREMENTS)
    with pytest.raises(setup.SetupError, match="PIP_EXTRA_INDEX_URL"):
        setup.install_for_cuda(Path("python"), [], OLDER)


@pytest.fixture
def installs(monkeypatch):
    """What set_up installs, on a machine without a driver."""
    steps = []
    monkeypatch.setattr(setup, "look_at_machine", machine)
    monkeypatch.setattr(setup, "make_venv", lambda venv, version: venv / "bin" / "python")
    monkeypatch.setattr(setup, "remove_misfits", lambda python, device: None)

    def install(python, extras, trios):
        steps.append((extras, [trio.name for trio in trios]))
        return trios[-1]

    monkeypatch.setattr(setup, "install_for_cpu", install)
    return steps


def test_nothing_is_done_twice(tmp_path, monkeypatch, installs, capsys):
    monkeypatch.setattr(setup, "find_driver", lambda: None)
    setup.set_up(tmp_path, "auto", ["dev"])
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
    def fail(python, extras, trios):
        raise setup.SetupError("pip failed")

    monkeypatch.setattr(setup, "install_for_cpu", fail)
    (tmp_path / setup.STAMP).write_text(json.dumps({"sources": "an older pyproject.toml"}))
    with pytest.raises(setup.SetupError):
        setup.set_up(tmp_path, "auto", [])
    assert not (tmp_path / setup.STAMP).exists()
