"""How to install what only some commands need: the extras of pyproject.toml."""

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires


def install_command(extra: str) -> str:
    """``pip install`` with the packages of ``extra`` by name, which works also where no index has this one."""
    try:
        stated = requires("dlrm-app") or []
    except PackageNotFoundError:  # run from its folder, without an installation
        stated = []
    parts = [re.fullmatch(r"(.+?)\s*;\s*extra == ['\"](\w+)['\"]", text) for text in stated]
    packages = [part[1] for part in parts if part is not None and part[2] == extra]
    return shlex.join(["pip", "install", *(packages or [f"dlrm-app[{extra}]"])])
