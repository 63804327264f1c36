"""Virtual environments that see a chosen part of the packages installed here, made in a fraction of a second."""

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

PACKAGES = Path(sysconfig.get_paths()["purelib"])


def make_bare_venv(folder: Path, keeps: Callable[[str], bool]) -> Path:
    """The Python of a new environment in ``folder``, with links to the packages whose file name ``keeps`` likes.

    dlrm-app itself is never among them.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [site_packages] = folder.glob("lib/python*/site-packages")
    for entry in PACKAGES.iterdir():
        if not is_dlrm_app(entry.name) and keeps(entry.name):
            (site_packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def is_dlrm_app(name: str) -> bool:
    """Whether a file in site-packages belongs to the editable installation of this project."""
    return "dlrm_app" in name.lower().replace("-", "_")
