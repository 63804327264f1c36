"""A run's events for TensorBoard and MLflow, besides metrics.jsonl, which is what counts."""

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dlrm_app.config.train import LoggingConfig
from dlrm_app.errors import DlrmError
from dlrm_app.files import write_text
from dlrm_app.records import leaves
from dlrm_app.runs.events import Happening, RunEnd, event_to_json, logged

logger = logging.getLogger(__name__)

NO_METRICS = ("epoch", "step", "split", "time")
"""Values that place an event rather than measure something."""
MLFLOW_BATCH = 1000
"""The most metrics that MLflow takes in one call."""


class EventLog(Protocol):
    """Somewhere that a run's events go."""

    def log_event(self, event: str, **values: Any) -> None:
        """Takes one event with its values, which may be nested mappings."""

    def close(self) -> None:
        """The run has come to its end."""


class Loggers:
    """Passes events on to ``logs``; one that fails is dropped with a warning, and the run goes on."""

    def __init__(self, logs: Sequence[EventLog]) -> None:
        self._logs = list(logs)

    def tell(self, happening: Happening) -> None:
        """Passes an event on with its time; closes every log at the run's end."""
        for log in list(self._logs):
            try:
                if event := logged(happening):
                    log.log_event(**event_to_json(event), time=time.time())
                elif isinstance(happening, RunEnd):
                    log.close()
            except Exception as error:  # whatever a client library raises
                self._logs.remove(log)
                name = type(log).__name__
                logger.warning("%s failed and gets no more events (metrics.jsonl does): %s", name, error)


class TensorBoardLog:
    """Scalars under RUN/tensorboard, on disk after every event."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # events of steps that a resumed run takes again are hidden
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)

    def log_event(self, event: str, **values: Any) -> None:
        """Adds a scalar for each number."""
        for name, value in scalars(event, values):
            self._writer.add_scalar(name, value, values.get("step"), values.get("time"))
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class MlflowLog:
    """A run on an MLflow tracking server; RUN/mlflow_run_id lets a resumed run continue it.

    The experiment is MLFLOW_EXPERIMENT_NAME, or dlrm-app. Raises DlrmError if ``uri`` does not answer.
    """

    def __init__(self, uri: str, folder: Path, parameters: Mapping[str, Any]) -> None:
        # MLflow would try for minutes, while all ranks wait
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            self._client = MlflowClient(uri)
            self._run_id = self._open_run(folder, parameters)
        except (MlflowException, ImportError) as error:
            raise DlrmError(
                f"logging.mlflow={uri} cannot be used: {error}\nname a tracking server that answers, "
                "or leave logging.mlflow out"
            ) from error

    def _open_run(self, folder: Path, parameters: Mapping[str, Any]) -> str:
        note = folder / "mlflow_run_id"
        if note.is_file():
            run_id = note.read_text(encoding="utf-8").strip()
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dlrm-app")
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id = str(self._client.create_run(experiment_id, run_name=folder.name).info.run_id)
        for key, value in leaves(parameters):
            self._client.log_param(run_id, _allowed(key), value)
        write_text(note, f"{run_id}\n")
        return run_id

    def log_event(self, event: str, **values: Any) -> None:
        """Adds a metric for each number."""
        from mlflow.entities import Metric

        milliseconds = round(1000 * values.get("time", 0))
        metrics = [
            Metric(_allowed(name), value, milliseconds, values.get("step", 0))
            for name, value in scalars(event, values)
        ]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + MLFLOW_BATCH])

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run_id)


def open_logs(config: LoggingConfig, folder: Path, first_step: int, parameters: Mapping[str, Any]) -> Loggers:
    """The logs that ``config`` wants for the run in ``folder``, which continues after ``first_step`` steps.

    ``parameters``: the run's configuration, as MLflow shows it.
    """
    logs: list[EventLog] = []
    if config.tensorboard:
        logs.append(TensorBoardLog(folder / "tensorboard", first_step))
    if config.mlflow:
        logs.append(MlflowLog(config.mlflow, folder, parameters))
    return Loggers(logs)


def scalars(event: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(name, number) of every number among ``values``: ``train/lr/sparse``, ``eval/val/auc``."""
    prefix = "/".join([event, values["split"]] if "split" in values else [event])
    measured = {key: value for key, value in values.items() if key not in NO_METRICS}
    for name, value in leaves(measured, "/"):
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}/{name}", float(value)


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-./ ]", "_", name)
