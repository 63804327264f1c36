"""The built wheel, installed in a bare environment, works from another folder: its commands find conf/."""

import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.bare_venv import make_bare_venv

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(
    point.name for point in entry_points(group="console_scripts") if point.value.startswith("dlrm_app.cli.")
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=600)
    [path] = folder.glob("dlrm_app-*.whl")
    return path


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands lie, in an environment that holds the wheel and the packages that are here, not the sources.

    scipy is left out: it comes with what tests use, and numba takes it where it is.
    """
    python = make_bare_venv(
        tmp_path_factory.mktemp("bare") / "venv", lambda name: not name.startswith(("scipy", "sklearn"))
    )
    install = ["-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, timeout=600)
    return python.parent


def run(command: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(command), *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_wheel_carries_the_whole_configuration_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"dlrm_app/conf/{path.relative_to(ROOT / 'conf')}" in names
    assert not any(name.startswith(("tests", "conf/", "scripts")) for name in names)


def test_the_installed_package_is_the_one_that_runs(bin_folder: Path, tmp_path: Path) -> None:
    done = run(bin_folder / "python", "-c", "import dlrm_app; print(dlrm_app.__file__)", folder=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(bin_folder.parent)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_is_composed(command: str, bin_folder: Path, tmp_path: Path) -> None:
    done = run(bin_folder / command, "--help", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Keys and their values now" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_generated_and_preprocessed(bin_folder: Path, tmp_path: Path) -> None:
    made = run(bin_folder / "dlrm-generate", "rows=2000", "output=clicks.tsv", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    keys = [
        "dataset=criteo_kaggle",
        "input.train=clicks.tsv",
        "split.val=0.1",
        "encoding=vocab",
        "output=dataset",
    ]
    done = run(bin_folder / "dlrm-preprocess", *keys, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dataset" / "manifest.json").is_file()
