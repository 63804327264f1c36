"""A run's folder: configuration, environment, events and result.

RUN/config.yaml  environment.json  plan.yaml   everything needed to repeat the run
RUN/config-until-step-000001000.yaml            the configuration of the steps before a change
RUN/dataset.json                                what the dataset holds, in short
RUN/metrics.jsonl                               one event a line
RUN/curves.json                                 ROC curve and reliability diagram of the last evaluations
RUN/result.json  report.html                    written last
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from dlrm_app.config.train import LoggingConfig, changed_keys
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import broadcast_from_first
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DlrmError, Problem, refuse_if
from dlrm_app.files import explained_disk_errors, sync_folder, write_json, write_text, written_whole
from dlrm_app.locks import held_lock
from dlrm_app.records import Json, as_json, from_json
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.checkpoint.marker import Checkpoint
from dlrm_app.runs.checkpoint.names import (
    checkpoint_name,
    checkpoint_step,
    checkpoints_of,
    list_checkpoints,
    other_run_problems,
    restore_replaced,
)
from dlrm_app.runs.environment import describe_dataset, describe_environment
from dlrm_app.runs.events import Event, RunResult, event_to_json
from dlrm_app.runs.tracking import Tracking
from dlrm_app.stores.names import here, portable, with_urls
from dlrm_app.text import json_text

logger = logging.getLogger(__name__)

TRACKED_FILES = ("report.html", "curves.json", "result.json", "config.yaml", "plan.yaml", "environment.json")
"""The files that trackers keep with a run."""
RUNS = Path("runs")
"""The parent folder of runs without ``output``."""
_RESUME = "then the same command with resume=auto continues from the newest checkpoint, if there is one"


class RunFolder:
    """Writes one run's files on the first rank; on the others every call does nothing."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path = path
        self._writes = runtime.is_first
        self._tracking = Tracking([])
        self._is_finished = False

    def write_start(
        self,
        config: Mapping[str, Any],
        manifest: Manifest,
        runtime: Runtime,
        step: int,
        command: Sequence[str],
    ) -> None:
        """Writes config.yaml, environment.json (with ``command``), dataset.json; trackers continue after ``step``."""
        if self._writes:
            config = with_urls(config)
            dataset = with_urls(describe_dataset(manifest))
            write_json(self.path / "dataset.json", dataset)
            write_text(self.path / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False))
            write_json(
                self.path / "environment.json", {"command": [*command], **describe_environment(runtime)}
            )
            logging_settings = from_json(LoggingConfig, config["logging"])
            self._tracking = Tracking(logging_settings.all_trackers)
            self._tracking.begin(self.path, config, dataset, step)

    def tell(self, event: Event) -> None:
        """Appends ``event`` to metrics.jsonl."""
        if self._writes:
            values = {**event_to_json(event), "time": round(time.time(), 3)}
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json_text(values) + "\n")
            self._tracking.add(event)

    def write_curves(self, of: Evaluation, curves: Mapping[str, object]) -> None:
        """Puts the ``curves`` of the latest evaluation of a split into curves.json."""
        if self._writes:
            path = self.path / "curves.json"
            write_json(path, {**_values_in(path), of.split: {"epoch": of.epoch, "step": of.step, **curves}})

    def write_result(self, result: RunResult) -> None:
        """Writes result.json, the mark of a run that reached its end."""
        if self._writes:
            write_json(self.path / "result.json", as_json(result))
            self._is_finished = True

    def close(self) -> None:
        """Ends the run in all trackers, with the files that describe it."""
        self._tracking.end([self.path / name for name in TRACKED_FILES], is_finished=self._is_finished)

    def metrics_bytes(self) -> int:
        """The size of metrics.jsonl now (0 on ranks that do not write). A resumed run continues it from there."""
        path = self.path / "metrics.jsonl"
        return path.stat().st_size if self._writes and path.exists() else 0

    def continue_from(self, checkpoint: Checkpoint | None) -> None:
        """Moves everything after ``checkpoint`` (None: all) to a set-aside folder, and keeps the metrics up to it."""
        if not self._writes:
            return
        step = checkpoint.marker.progress.step if checkpoint else 0
        if aside := set_aside_after(self.path, step):
            logger.warning("everything after step %s is set aside in %s", f"{step:,}", aside)
        for path in self.path.glob("config-until-*.yaml"):
            if path.stem.removeprefix("config-until-") >= checkpoint_name(step):
                path.unlink()
        source = checkpoint.folder.parents[1] if checkpoint else self.path
        if (source / "metrics.jsonl").is_file():
            with (source / "metrics.jsonl").open("rb") as file:
                events = file.read(checkpoint.marker.metrics_bytes if checkpoint else 0)
            with written_whole(self.path / "metrics.jsonl") as temporary:
                temporary.write_bytes(events)

    def note_changes(self, before: Mapping[str, object], config: Mapping[str, object], step: int) -> None:
        """Logs the keys that change after ``step``, and keeps the configuration of the steps before."""
        if self._writes and (changes := changed_keys(before, with_urls(config))):
            logger.warning("changed from step %s on: %s", f"{step:,}", "; ".join(changes))
            path = self.path / f"config-until-{checkpoint_name(step)}.yaml"
            write_text(path, yaml.safe_dump(dict(before), sort_keys=False))

    def result_at(self, checkpoint: Checkpoint | None) -> RunResult | None:
        """The result of a run that ended at ``checkpoint`` of this folder, on every rank; None if it did not."""
        result = None
        if self._writes and checkpoint and checkpoint.folder.resolve().parents[1] == self.path.resolve():
            with suppress(ValueError):  # damaged
                result = from_json(RunResult, _values_in(self.path / "result.json"))
        result = broadcast_from_first(result)
        return result if checkpoint and result and result.steps == checkpoint.marker.progress.step else None


LEASE_SECONDS = 180.0


@contextmanager
def open_run_folder(output: str | None, resume: str, runtime: Runtime) -> Iterator[RunFolder]:
    """Makes or opens the run folder and locks it for this run while the block runs; the same folder on every rank.

    Raises DlrmError if it cannot be written, if another process uses it, or if it holds a run that ``resume`` does not
    continue.
    """
    with (
        runtime.entered_on_first(_held_folder(output, resume)) as place,
        explained_disk_errors(here(place), _RESUME),
        closing(RunFolder(here(place), runtime)) as folder,
    ):
        yield folder


@contextmanager
def _held_folder(output: str | None, resume: str) -> Iterator[str]:
    with ExitStack() as stack:
        try:
            path = _new_folder() if output is None else Path(output).absolute()
            if output is None or not path.exists():
                stack.callback(_remove_empty, path)
            elif not path.is_dir():
                raise DlrmError(Problem(f"output={path}", "is a file", "name a folder"))
            path.mkdir(parents=True, exist_ok=True)
            refusal = f"another dlrm-train is working on output={path}: wait for it, end it, or choose another folder"
            # NFS keeps the lock of a node without power for its lease; Slurm starts the job again before that
            is_restart = os.environ.get("SLURM_RESTART_COUNT", "0") != "0" and resume == "auto"
            stack.enter_context(held_lock(path / ".lock", refusal, LEASE_SECONDS if is_restart else 0.0))
        except OSError as error:
            rule = f"cannot be written ({error.strerror})"
            raise DlrmError(Problem(f"output={output or RUNS}", rule)) from error
        restore_replaced(checkpoints_of(path))
        refuse_if(other_run_problems(path, resume))
        yield portable(path)


def _new_folder() -> Path:
    """Makes runs/<date>-<time>; a number follows if another run began in the same second."""
    name = time.strftime("%Y%m%d-%H%M%S")
    for number in count(1):
        path = RUNS / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):  # another run has made it
            path.mkdir(parents=True)
            break
    return path.absolute()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty, unless the run was refused
        folder.rmdir()


def _values_in(path: Path) -> Json:
    """The values in a JSON file of the run; empty if it is missing or damaged: the run writes it again."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


ENDED = ("result.json", "curves.json", "report.html")
"""Files about the end of a run; a resumed run starts without them."""


def set_aside_after(run: Path, step: int) -> Path | None:
    """Moves the checkpoints after ``step`` to RUN/set-aside-N, copies all other files there, and returns its path.

    Returns None if the run neither saved nor ended after ``step``: then there is nothing to set aside.
    """
    newer = [folder for folder in list_checkpoints(checkpoints_of(run)) if checkpoint_step(folder) > step]
    if not newer and _values_in(run / "result.json").get("steps", 0) <= step:
        return None
    aside = next(folder for n in count(1) if not (folder := run / f"set-aside-{n}").exists())
    partial = aside.with_name(f".{aside.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    checkpoints_of(partial).mkdir(parents=True)
    for path in run.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, partial)
    partial.rename(aside)
    for name in ENDED:
        (run / name).unlink(missing_ok=True)
    for folder in newer:  # the newest first: a kill between two leaves a shorter history, never a mixed one
        folder.rename(checkpoints_of(aside) / folder.name)
    sync_folder(run)
    return aside
