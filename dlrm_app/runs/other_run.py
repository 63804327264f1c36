"""Whether a folder holds a run that the one to begin does not go on with. It loads no torch."""

from pathlib import Path

from dlrm_app.runs.checkpoint.format import list_checkpoints


def other_run_problems(path: Path, resume: str) -> list[str]:
    """Why ``output=path`` cannot take a run that begins with ``resume``."""
    holds_run = (path / "config.yaml").exists() or bool(list_checkpoints(path / "checkpoints"))
    if not holds_run or _goes_on_with(path, resume):
        return []
    return [f"output={path} already holds a run: add resume=auto to go on with it, or choose another folder"]


def _goes_on_with(path: Path, resume: str) -> bool:
    """Whether ``resume`` names the run in ``path``, or a checkpoint of it."""
    named = Path(resume).resolve()
    return resume == "auto" or (resume != "none" and path.resolve() in (named, *named.parents[1:2]))
