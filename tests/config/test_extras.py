"""What a message tells to install is what pyproject.toml states."""

import shlex
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from dlrm_app.typed import install_command

EXTRAS: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
)["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_installed_by_its_packages_names(extra: str) -> None:
    """The package itself need be on no index for that."""
    pip, install, *packages = shlex.split(install_command(extra))
    assert (pip, install) == ("pip", "install")
    assert {*map(Requirement, packages)} == {*map(Requirement, EXTRAS[extra])}
