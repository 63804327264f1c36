"""docs/notebook.ipynb runs in Jupyter's kernel, which has an event loop, and as a script."""

import json
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.pages import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def outputs_of(cell: nbformat.NotebookNode) -> str:
    return json.dumps(cell.get("outputs", []))


@pytest.mark.long
def test_the_notebook_runs_in_jupyter_and_shows_tables(tmp_path: Path) -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {
        cell.source.splitlines()[-1]: outputs_of(cell) for cell in book.cells if cell.cell_type == "code"
    }
    for last_line in ("dataset", "run", 'dlrm.evaluate(checkpoint=run.path, split="test")'):
        assert "<table>" in shown[last_line], last_line
    assert 0.7 < float(json.loads(shown["run.auc"])[0]["data"]["text/plain"]) < 0.8
    assert "did you mean trainer.epochs" in shown["    print(error)"]


@pytest.mark.long
def test_the_notebooks_cells_run_as_a_script(tmp_path: Path) -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    code = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "did you mean trainer.epochs" in done.stdout
