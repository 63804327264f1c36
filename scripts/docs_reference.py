"""Makes the reference pages that come from conf/ and the code; mkdocs calls it when it builds the site."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to those in docs/."""
    content = "# Configuration\n\n`dlrm-NAME --help` lists the keys of a command.\n"
    if (ROOT / "dlrm_app/config/reference.py").exists():
        content = printed_by("dlrm_app.config.reference")
    files.append(File.generated(config, "reference/configuration.md", content=content))
    return files


def printed_by(module: str) -> str:
    """What ``python -m module`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout
