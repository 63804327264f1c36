"""What a run did after the checkpoint that it goes back to: kept, as a run folder of its own.

RUN/set-aside-1/checkpoints/ …  config.yaml  metrics.jsonl  result.json …
"""

import json
import shutil
from itertools import count
from pathlib import Path

from dlrm_app.files import sync_folder
from dlrm_app.runs.checkpoint.format import checkpoint_step, list_checkpoints

ENDED = ("result.json", "curves.json", "report.html", "mlflow_run_id")
"""Files that tell how far the run had come, or where its events go: the run that goes back begins without."""


def set_aside_after(run: Path, step: int) -> Path | None:
    """Moves the checkpoints after ``step`` and copies all else of the run to RUN/set-aside-N, which it gives.

    None if the run neither saved nor ended after ``step``: then it goes on from where it was, and nothing is left.
    """
    newer = [folder for folder in list_checkpoints(run / "checkpoints") if checkpoint_step(folder) > step]
    if not newer and _last_step(run) <= step:
        return None
    aside = next(folder for n in count(1) if not (folder := run / f"set-aside-{n}").exists())
    partial = aside.with_name(f".{aside.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "checkpoints").mkdir(parents=True)
    for path in run.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, partial)
    partial.rename(aside)
    for name in ENDED:
        (run / name).unlink(missing_ok=True)
    for folder in newer:  # the newest first: a kill between two leaves a shorter history, not a mixed one
        folder.rename(aside / "checkpoints" / folder.name)
    sync_folder(run)
    return aside


def _last_step(run: Path) -> int:
    """The steps of the run that ended in this folder; 0 if none did, or its result is damaged."""
    try:
        return int(json.loads((run / "result.json").read_text(encoding="utf-8"))["steps"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
