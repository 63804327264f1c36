"""A run's folder: what was asked for, on what, and what came of it.

RUN/config.yaml  environment.json  plan.yaml   everything needed to do it again
RUN/config-until-step-000001000.yaml            the configuration of the steps before, where it was changed
RUN/dataset.json                                what the dataset holds, in short
RUN/metrics.jsonl                               one event a line
RUN/curves.json                                 ROC, reliability and histogram of the last evaluations
RUN/mlperf.txt                                  MLPerf's log, where it is asked for
RUN/result.json  report.html                    written last
"""

import itertools
import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import yaml

from dlrm_app.config.saved import changed_keys
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import broadcast_from_first
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DlrmError, refuse_if
from dlrm_app.evaluation.curves import Curves
from dlrm_app.files import explained_disk_errors, held_lock, write_json, write_text, written_whole
from dlrm_app.runs.checkpoint.format import checkpoint_name, restore_replaced
from dlrm_app.runs.checkpoint.load import Checkpoint
from dlrm_app.runs.environment import describe_dataset, describe_environment
from dlrm_app.runs.events import Event, RunResult, event_to_json
from dlrm_app.runs.loggers import FanOut, open_logs
from dlrm_app.runs.mlperf_log import MlperfLog
from dlrm_app.runs.other_run import other_run_problems
from dlrm_app.runs.set_aside import set_aside_after

logger = logging.getLogger(__name__)

RUNS = Path("runs")
"""Where a run without ``output`` gets its folder."""
GO_ON = "then the same command with resume=auto goes on from the newest checkpoint, if there is one"


class RunFolder:
    """Writes one run's files on the first rank; on the others every call does nothing."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path = path
        self._writes = runtime.is_first
        self._logs = FanOut()
        self.mlperf = MlperfLog(None)

    def write_start(self, config: TrainConfig, manifest: Manifest, runtime: Runtime) -> None:
        """Writes config.yaml, environment.json and dataset.json."""
        if self._writes:
            write_json(self.path / "dataset.json", describe_dataset(manifest))
            write_text(self.path / "config.yaml", yaml.safe_dump(asdict(config), sort_keys=False))
            write_json(self.path / "environment.json", describe_environment(runtime))

    def open_logs(self, config: TrainConfig, first_step: int) -> None:
        """Passes every event from here on to the logs that ``config`` names. Raises DlrmError if one cannot be."""
        if self._writes:
            self._logs = open_logs(config.logging, self.path, first_step, asdict(config))

    def open_mlperf_log(self, is_wanted: bool) -> None:
        """Begins mlperf.txt, with the beginning of the work; without this ``mlperf`` writes nothing."""
        if self._writes and is_wanted:
            self.mlperf = MlperfLog(self.path / "mlperf.txt")

    def log(self, event: Event) -> None:
        """Appends one line, with the time in Unix seconds, to metrics.jsonl."""
        if self._writes:
            values = {**event_to_json(event), "time": round(time.time(), 3)}
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
            self._logs.log_event(**values)

    def write_curves(self, split: str, epoch: int, step: int, curves: Curves | None) -> None:
        """Puts the curves of the latest evaluation of ``split`` into curves.json."""
        if self._writes:
            path = self.path / "curves.json"
            values = {"epoch": epoch, "step": step, **(asdict(curves) if curves else {})}
            write_json(path, {**_curves_in(path), split: values})

    def metrics_bytes(self) -> int:
        """The size of metrics.jsonl now (0 on ranks that do not write): where a resumed run goes on."""
        path = self.path / "metrics.jsonl"
        return path.stat().st_size if self._writes and path.exists() else 0

    def go_on_from(self, checkpoint: Checkpoint | None) -> None:
        """Sets aside what the folder holds after ``checkpoint`` (None: all), and takes over the metrics up to it."""
        if not self._writes:
            return
        step = checkpoint.marker.progress.step if checkpoint else 0
        if aside := set_aside_after(self.path, step):
            logger.warning("what came after step %s is set aside in %s", f"{step:,}", aside)
        for path in self.path.glob("config-until-*.yaml"):
            if path.stem.removeprefix("config-until-") >= checkpoint_name(step):
                path.unlink()
        source = checkpoint.folder.parents[1] if checkpoint else self.path
        if (source / "metrics.jsonl").is_file():
            with (source / "metrics.jsonl").open("rb") as file:
                kept = file.read(checkpoint.marker.metrics_bytes if checkpoint else 0)
            with written_whole(self.path / "metrics.jsonl") as temporary:
                temporary.write_bytes(kept)

    def note_changes(self, before: TrainConfig, config: TrainConfig, step: int) -> None:
        """Says what is changed from ``step`` on, and keeps the configuration of the steps before."""
        if self._writes and (changes := changed_keys(asdict(before), asdict(config))):
            logger.warning("changed from step %s on: %s", f"{step:,}", "; ".join(changes))
            path = self.path / f"config-until-{checkpoint_name(step)}.yaml"
            write_text(path, yaml.safe_dump(asdict(before), sort_keys=False))

    def result_at(self, checkpoint: Checkpoint | None) -> RunResult | None:
        """The result of the run that ended at ``checkpoint`` of this folder, the same on every rank; None if none did."""
        result = None
        if self._writes and checkpoint and checkpoint.folder.resolve().parents[1] == self.path.resolve():
            with suppress(
                FileNotFoundError, ValueError, KeyError, TypeError
            ):  # of an older version, or damaged
                result = RunResult.from_json(json.loads((self.path / "result.json").read_text("utf-8")))
        result = broadcast_from_first(result)
        return result if checkpoint and result and result.steps == checkpoint.marker.progress.step else None

    def write_result(self, result: RunResult) -> None:
        """Writes result.json, whole or not at all: the mark of a run that reached its end."""
        if self._writes:
            write_json(self.path / "result.json", result.to_json())
            self._logs.close()


@contextmanager
def open_run_folder(output: str | None, resume: str, runtime: Runtime) -> Iterator[RunFolder]:
    """Makes the folder, or takes the one that is there, for this run alone while the block runs; the same on every rank.

    Raises DlrmError if it cannot be written, another process works on it, or it holds a run that ``resume`` does not
    go on with.
    """
    with ExitStack() as stack:
        held = runtime.together(
            lambda: stack.enter_context(_held_folder(output, resume)) if runtime.is_first else None
        )
        path = broadcast_from_first(held)
        assert path is not None
        with explained_disk_errors(path, GO_ON):
            yield RunFolder(path, runtime)


@contextmanager
def _held_folder(output: str | None, resume: str) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            path = _new_folder() if output is None else Path(output).absolute()
            if output is None or not path.exists():
                stack.callback(_remove_empty, path)
            elif not path.is_dir():
                raise DlrmError(f"output={path} is a file: name a folder")
            path.mkdir(parents=True, exist_ok=True)
            refusal = f"another dlrm-train is working on output={path}: wait for it, end it, or choose another folder"
            stack.enter_context(held_lock(path / ".lock", refusal))
        except OSError as error:
            raise DlrmError(f"output={output or RUNS} cannot be written: {error.strerror}") from error
        restore_replaced(path / "checkpoints")
        refuse_if(other_run_problems(path, resume))
        yield path


def _new_folder() -> Path:
    """runs/<date>-<time>; a number follows where another run began in the same second."""
    name = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)  # fails if it is there: of two runs one has it
        except FileExistsError:
            continue
        break
    return path.absolute()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something, unless the run was refused
        folder.rmdir()


def _curves_in(path: Path) -> dict[str, object]:
    """Those of the splits that were evaluated before; none if the file is damaged, for they come again."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}
