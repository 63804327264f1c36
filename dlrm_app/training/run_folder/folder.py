"""A run's folder: what was asked for, on what, and what came of it.

RUN/config.yaml  environment.json  plan.yaml   everything needed to do it again
RUN/dataset.json                                what the dataset holds, in short
RUN/metrics.jsonl                               one event a line
RUN/curves.json                                 ROC, reliability and histogram of the last evaluations
RUN/result.json  report.html                    written last
"""

import json
import time
from dataclasses import asdict
from pathlib import Path

import yaml

from dlrm_app.config.train import TrainConfig
from dlrm_app.data.manifest import Manifest
from dlrm_app.distributed.collectives import broadcast_from_first
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DlrmError
from dlrm_app.evaluation.curves import Curves
from dlrm_app.files import write_json, write_text, written_whole
from dlrm_app.training.run_folder.environment import describe_dataset, describe_environment
from dlrm_app.training.run_folder.events import Event, RunResult, event_to_json
from dlrm_app.training.run_folder.loggers import FanOut, open_logs


class RunFolder:
    """Writes one run's files on the first rank; on the others every call does nothing."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path = path
        self._writes = runtime.is_first
        self._logs = FanOut()

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
            others = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            values = {"epoch": epoch, "step": step, **(asdict(curves) if curves else {})}
            write_json(path, {**others, split: values})

    def metrics_bytes(self) -> int:
        """The size of metrics.jsonl now (0 on ranks that do not write): where a resumed run goes on."""
        path = self.path / "metrics.jsonl"
        return path.stat().st_size if self._writes and path.exists() else 0

    def keep_metrics(self, source: Path, num_bytes: int) -> None:
        """Keeps the first ``num_bytes`` of the metrics of the run at ``source``, which this one goes on from."""
        log = source / "metrics.jsonl"
        if self._writes and log.is_file():
            with log.open("rb") as file:
                kept = file.read(num_bytes)
            with written_whole(self.path / "metrics.jsonl") as temporary:
                temporary.write_bytes(kept)

    def write_result(self, result: RunResult) -> None:
        """Writes result.json, whole or not at all: the mark of a run that reached its end."""
        if self._writes:
            write_json(self.path / "result.json", result.to_json())
            self._logs.close()


def create_run_folder(output: str | None, may_exist: bool, runtime: Runtime) -> RunFolder:
    """Makes the folder once and tells every rank its name. Refuses one that holds a run unless it ``may_exist``."""

    def create() -> Path:
        name = Path(output or f"runs/{time.strftime('%Y%m%d-%H%M%S')}").absolute()
        if not may_exist and ((name / "metrics.jsonl").exists() or (name / "config.yaml").exists()):
            raise DlrmError(
                f"output={name} already holds a run: add resume=auto to go on with it, or choose another folder"
            )
        if name.exists() and not name.is_dir():
            raise DlrmError(f"output={name} is a file: name a folder")
        try:
            name.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DlrmError(f"output={name} cannot be made: {error.strerror}") from error
        return name

    path = runtime.together(lambda: create() if runtime.is_first else Path())
    return RunFolder(broadcast_from_first(path), runtime)
