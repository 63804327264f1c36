"""Makes the parts of the reference that come from conf/ and the code; mkdocs calls it when it builds the site."""

from __future__ import annotations

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


HEAD = (
    "kind",
    "state per weight",
    "state per row",
    "fused on",
    "weight_decay fused on",
    "trains alike under column_wise",
)
ROWS = """
from dlrm_app.tables.sparse_optimizers import ROW, SPARSE_OPTIMIZERS, WEIGHT
for kind, optimizer in SPARSE_OPTIMIZERS.items():
    kept = list(optimizer.state.values())
    sizes = [f"{4 * kept.count(part)} B" for part in (WEIGHT, ROW)]
    devices = [", ".join(each) or "-" for each in (optimizer.devices, optimizer.decay_devices)]
    print("|", f"`{kind}`", *sizes, *devices, "no" if optimizer.reduces_over_rows else "yes", "|", sep=" | ")
"""


def optimizer_table() -> str:
    rows = [
        line[4:-4] for line in printed_by("-W", "ignore", "-c", ROWS).splitlines() if line.startswith("| | ")
    ]
    return "\n".join(f"| {line} |" for line in [" | ".join(HEAD), " | ".join(["---"] * len(HEAD)), *rows])


def printed_by(*arguments: str) -> str:
    """What ``python`` with ``arguments`` prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout
