"""The code blocks of a page in docs/, and what a reader does with them: write files, change files, type commands."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.api.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.M | re.S)


@dataclass(frozen=True)
class Block:
    """``language`` bash: to be typed. ``title``: the file that the text is, or the place in a file where it goes."""

    language: str
    title: str | None
    text: str

    def do(self, folder: Path) -> None:
        """What the reader is asked to do with it, in ``folder``: nothing with an example or an output."""
        if self.title is not None:
            self._write(folder)
        elif self.language == "bash":
            type_commands(self.text, folder)

    def _write(self, folder: Path) -> None:
        assert self.title is not None
        name, _, where = self.title.partition(": ")
        path = folder / name
        if not where:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        opening = "from dlrm_app" if where == "one more import" else f"{where.removeprefix('in ')} = {{"
        line = next(number for number, text in enumerate(lines) if text.startswith(opening))
        lines.insert(line if where == "one more import" else line + 1, self.text)
        path.write_text("".join(lines))


def blocks_of(page: str, heading: str | None = None) -> Iterator[Block]:
    """All blocks of docs/``page``, or those of the section under ``## heading``."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if heading is not None:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return (Block(match["language"], match["title"], match["text"]) for match in BLOCK.finditer(text))


def type_commands(text: str, folder: Path) -> None:
    """Types the lines into a shell with ``python``, ``torchrun`` and ``dlrm-…`` of the package in ``folder``."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    commands = {f"dlrm-{name}": f"-m dlrm_app.cli {name}" for name in COMMANDS}
    for name, module in {**commands, "torchrun": "-m torch.distributed.run", "python": ""}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
