"""The files of conf/: where they are, and which choices a group has."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

BUILDS_ON = {"plan": "train", "tune": "train"}
"""Command → the command whose file its own builds on; its schema extends the other's and is used for both files."""
TRAINING = ("train", *BUILDS_ON)
"""Commands that take the recipes of conf/experiment/ itself."""


def conf_dir() -> Path:
    """The path of conf/: inside the installed wheel, or beside the package in a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed, source = package / "conf", package.parent / "conf"
    return installed if installed.is_dir() else source


def conf_file(name: str) -> dict[str, Any]:
    """The content of a file in conf/, such as ``train.yaml``, not composed."""
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / name))
    return dict(content)


def choices_of(group: str, command: str) -> tuple[str, list[str]]:
    """The folder of ``group``'s choices below conf/GROUP ("" or with a slash at the end), and the choices' names.

    If a group has a folder named after ``command``, its choices are the files in that folder (docs/adr/0005).
    """
    folder = f"{command}/" if (conf_dir() / group / command).is_dir() else ""
    if group == "experiment" and not folder and command not in TRAINING:
        return "", []
    return folder, sorted(file.stem for file in (conf_dir() / group / folder).glob("*.yaml"))
