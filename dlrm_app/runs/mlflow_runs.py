"""Runs in MLflow. Where to, it reads from its own variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, …"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from dlrm_app.runs.events import Event
from dlrm_app.runs.tracker import TrackedRun, Tracker, scalars

ALIAS = "published"
_MOST_AT_ONCE, _LONGEST = 100, 500
"""The most parameters of a request, and the longest value that every server takes."""


class MlflowRuns(Tracker):
    """Uses MLflow's client, which keeps no run active in the process."""

    def __init__(self) -> None:
        self._client = MlflowClient()
        self._run = ""

    def begin(self, run: TrackedRun) -> str:
        if run.known is None:
            tags = {"mlflow.runName": run.name}
            tags |= {"mlflow.parentRunId": run.parent} if run.parent else {}
            self._run = self._client.create_run(self._experiment(), tags=tags).info.run_id
        else:
            self._run = run.known
            self._client.update_run(self._run, status="RUNNING")
        given = self._client.get_run(self._run).data.params  # MLflow does not change them
        new = [Param(key, str(value)[:_LONGEST]) for key, value in run.parameters.items() if key not in given]
        for first in range(0, len(new), _MOST_AT_ONCE):
            self._client.log_batch(self._run, params=new[first : first + _MOST_AT_ONCE])
        self._client.log_batch(self._run, tags=[RunTag(key, value) for key, value in run.tags.items()])
        return self._run

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dlrm-app")
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def add(self, event: Event) -> None:
        now = int(time.time() * 1000)
        # MLflow refuses names with @: ndcg@10 is ndcg_at_10
        named = [(name.replace("@", "_at_"), value) for name, value in scalars(event)]
        metrics = [Metric(name, value, now, event.step) for name, value in named]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, files: Sequence[Path], *, is_finished: bool) -> None:
        for file in files:
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, "FINISHED" if is_finished else "KILLED")

    def attach(self, known: str, folder: Path) -> None:
        self._client.log_artifacts(known, str(folder), folder.name)

    def publish(self, known: str, folder: Path, model: str) -> None:
        """Registers the folder, and moves the alias ``published`` to this version."""
        try:
            self._client.create_registered_model(model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = str(folder.resolve())
        versions = self._client.search_model_versions(f"name='{model}'")
        found = next((each for each in versions if each.source == source), None)
        version = found or self._client.create_model_version(model, source, known)
        self._client.set_registered_model_alias(model, ALIAS, version.version)
