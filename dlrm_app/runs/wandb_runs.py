"""Runs in Weights & Biases. Where to, it reads from its own variables: WANDB_PROJECT, WANDB_MODE, …"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import wandb

from dlrm_app.runs.events import Event
from dlrm_app.runs.tracker import TrackedRun, Tracker, scalars


class WandbRuns(Tracker):
    """A run of its own, beside others of the process. Its files lie in RUN/wandb."""

    def __init__(self) -> None:
        self._run: Any = None

    def begin(self, run: TrackedRun) -> str:
        self._run = _open(
            run.folder,
            run.known,
            name=run.name,
            group=run.parent,
            config={**run.parameters, **run.tags},
            tags=[*["resumed"] * (run.step > 0), *["warm-started"] * ("dlrm.warm_started_from" in run.tags)],
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")  # a resumed run takes steps again
        return str(self._run.id)

    def add(self, event: Event) -> None:
        self._run.log({"step": event.step, **dict(scalars(event))})

    def end(self, files: Sequence[Path], *, is_finished: bool) -> None:
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")
        self._run.finish(exit_code=0 if is_finished else 1)

    def attach(self, known: str, folder: Path) -> None:
        self._keep(known, folder, [])

    def publish(self, known: str, folder: Path, model: str) -> None:
        self._keep(known, folder, ["published"], model)

    def _keep(self, known: str, folder: Path, aliases: Sequence[str], name: str | None = None) -> None:
        run = _open(folder.parent, known)
        artifact = wandb.Artifact(name or f"{folder.parent.name}-{folder.name}", type="model")
        artifact.add_dir(str(folder))
        run.log_artifact(artifact, aliases=["latest", *aliases])
        run.finish()


def _open(folder: Path, known: str | None, **about: Any) -> Any:
    """A new run, or the ``known`` one."""
    quiet = wandb.Settings(console="off", silent=True)
    resume: Literal["allow"] | None = "allow" if known else None
    return wandb.init(dir=str(folder), id=known, resume=resume, reinit="create_new", settings=quiet, **about)
