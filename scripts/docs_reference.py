"""Makes the parts of the reference that come from conf/ and the code; mkdocs calls it when it builds the site."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OPTIMIZERS = "<!-- sparse optimizers -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the configuration's page, made from the comments in conf/."""
    content = printed_by("scripts/configuration_reference.py")
    files.append(File.generated(config, "reference/configuration.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts the registry of sparse optimizers in its place."""
    return markdown.replace(OPTIMIZERS, optimizer_table()) if OPTIMIZERS in markdown else markdown


def optimizer_table() -> str:
    code = "import json; from dlrm_app.tables.sparse_optimizers import optimizer_rows as rows; print(json.dumps(rows()))"
    head, *rows = json.loads(printed_by("-W", "ignore", "-c", code).splitlines()[-1])
    lines = [head, ["---"] * len(head), *([f"`{kind}`", *cells] for kind, *cells in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def printed_by(*arguments: str) -> str:
    """What ``python`` with ``arguments`` prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout
