"""Installs packages into a virtual environment by uv, with pip's configuration; by pip what uv cannot.

Standard library only: scripts/setup.py imports it before anything is installed.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

SAME_OPTIONS = (
    *("index-url", "extra-index-url", "find-links", "constraint"),
    *("trusted-host", "only-binary", "no-binary"),
)
"""Options to which pip and uv give the same name."""
UV_VARIABLES = {
    "cert": ["SSL_CERT_FILE"],
    "client-cert": ["SSL_CLIENT_CERT"],
    "proxy": ["HTTP_PROXY", "HTTPS_PROXY"],
    "timeout": ["UV_HTTP_TIMEOUT"],
    "default-timeout": ["UV_HTTP_TIMEOUT"],
    "retries": ["UV_HTTP_RETRIES"],
    "keyring-provider": ["UV_KEYRING_PROVIDER"],
}


class SetupError(Exception):
    """Something that the user can mend; the message says how."""


class Installer:
    """Installs into the environment of ``python``: by uv with pip's configuration, and by pip what uv cannot."""

    def __init__(self, python: Path) -> None:
        self.python = python
        self.pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        self.uv = self._find_uv()
        self.uv_options, self.uv_variables = as_uv_settings(output([*self.pip, "config", "list"]))

    def install(self, *requirements: str, index: str | None = None, may_lack: str | None = None) -> bool:
        """False if the sources lack ``may_lack``, or a constraint rules it out; SetupError for any other failure."""
        arguments = [*(["--extra-index-url", index] if index else []), *requirements]
        hasty = {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1"} if may_lack and index else {}
        complaint = self._try_uv(arguments, hasty) if self.uv else ""
        if complaint is None:
            return True
        if not may_lack:
            self._drop_uv(complaint)
        command = [*self.pip, "install", "-q", *arguments]
        done = call(command, hasty)
        if done.returncode == 0:
            self._drop_uv(complaint)
            return True
        lacking = (f"No matching distribution found for {may_lack}", f"Cannot install {may_lack} because")
        if may_lack and any(text in done.stderr for text in lacking):
            return False
        raise SetupError(f"pip failed. {last_lines(done.stderr)}\nThe command was: {' '.join(command)}")

    def _find_uv(self) -> str | None:
        """The environment's, else that on the path, else one that pip installs; None if it cannot."""
        folder = str(self.python.parent)
        if found := shutil.which("uv", path=os.pathsep.join([folder, os.environ.get("PATH", "")])):
            return found
        done = call([*self.pip, "install", "-q", "uv"])
        if done.returncode == 0:
            return shutil.which("uv", path=folder)
        print(
            f"uv cannot be had, so pip installs, which takes minutes. {last_lines(done.stderr, 2)}",
            flush=True,
        )
        return None

    def _try_uv(self, arguments: list[str], variables: dict[str, str]) -> str | None:
        """uv's complaint; None if it succeeded."""
        command = [
            self.uv,
            "pip",
            "install",
            "-q",
            "--python",
            str(self.python),
            *self.uv_options,
            *arguments,
        ]
        done = call(command, {**self.uv_variables, **variables})
        return None if done.returncode == 0 else done.stderr

    def _drop_uv(self, complaint: str) -> None:
        """Leaves the rest to pip."""
        if self.uv:
            print(f"uv failed, so pip installs, which takes minutes. {last_lines(complaint)}", flush=True)
            self.uv = None


def as_uv_settings(listing: str) -> tuple[list[str], dict[str, str]]:
    """uv's options and variables for the output of ``pip config list``; what uv has no word for is left out."""
    values: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):  # the last one wins
        for line in listing.splitlines():
            name, _, quoted = line.partition("=")
            if name.startswith(section) and (value := ast.literal_eval(quoted)):
                values[name[len(section) :]] = value
    options = ["--index-strategy", "unsafe-best-match"]  # pip's rule: the best version of all indexes wins
    for key, option in (("no-index", "--no-index"), ("pre", "--prerelease=allow")):
        if values.get(key, "").lower() in ("1", "true", "yes", "on"):
            options.append(option)
    for key in SAME_OPTIONS:
        for value in values.get(key, "").split():
            options += [f"--{key}", str(Path(value).expanduser()) if value.startswith("~") else value]
    variables = {name: values[key] for key, names in UV_VARIABLES.items() if key in values for name in names}
    return options, {"UV_SYSTEM_CERTS": "true", **variables}  # as pip, which has the system's certificates


def call(command: list[str], variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(variables or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def output(command: list[str]) -> str:
    done = call(command)
    if done.returncode != 0:
        raise SetupError(f"this command failed: {' '.join(command)}\n{last_lines(done.stdout + done.stderr)}")
    return done.stdout


def last_lines(text: str, count: int = 12) -> str:
    return "\n".join(["It said:", *text.strip().splitlines()[-count:]])
