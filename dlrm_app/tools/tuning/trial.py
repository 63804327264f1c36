"""A trial: its settings, the dlrm-train process that trains with them, and its curve on val."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)

from dlrm_app.config.like_train import TuneConfig
from dlrm_app.config.overrides import Settings
from dlrm_app.distributed.launcher import LAUNCHED
from dlrm_app.errors import DlrmError, ExitCode
from dlrm_app.records import ALWAYS, Format, Json, leaves
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import read_events
from dlrm_app.stores.names import with_urls
from dlrm_app.typed import setting, words_of

POLL_SECONDS = 0.5
GRACE_SECONDS = 60
"""Seconds for a run to save when it is asked to stop."""
STOPPED = (ExitCode.RESUMABLE, ExitCode.INTERRUPTED, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a training that was ended by a signal, such as Ctrl-C in a terminal, and can be resumed."""
TRAIN = (sys.executable, "-m", "dlrm_app.cli", "train")


class TrialError(DlrmError):
    """Raised if a training fails, or gives no value to compare."""


def trained_values(
    folder: Path,
    settings: Settings,
    metric: str,
    stopped: threading.Event,
    train: Sequence[str] = TRAIN,
    gpu: str | None = None,
) -> Generator[float, None, None]:
    """Trains with ``settings`` in ``folder``; yields ``metric`` of every evaluation on val as soon as it is known.

    Continues from the newest checkpoint in ``folder`` if there is one. ``gpu``: the GPU to use; None for any. The
    training is stopped, and can be resumed, if the iterator is closed or ``stopped`` is set. Raises TrialError if it
    fails, and KeyboardInterrupt if it was stopped or a signal ended it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # val alone decides
    fixed = {"output": str(folder.absolute()), "resume": "auto", "evaluation.test": False}
    # URLs: a trial brings the shards that it reads itself
    words = [*train, *words_of({**with_urls(settings), **fixed})]
    log = folder.with_suffix(".log")
    with log.open("a", encoding="utf-8") as output:
        environment = {**os.environ, LAUNCHED: "1", **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            num_read, has_ended = 0, False
            while not has_ended:
                if stopped.wait(POLL_SECONDS):
                    raise KeyboardInterrupt
                has_ended = process.poll() is not None  # before its values, so that all are seen
                values = curve(folder, metric)
                yield from values[num_read:]
                num_read = len(values)
        finally:
            _stop(process)
    if process.returncode in STOPPED:
        raise KeyboardInterrupt
    if process.returncode:
        raise TrialError(_last_error(log))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def curve(folder: Path, metric: str) -> list[float]:
    """The metric of every evaluation on val in the run's metrics so far. Raises DataError if they are damaged."""
    evaluations = (event for event in read_events(folder) if isinstance(event, Evaluation))
    return [event.metrics[metric] for event in evaluations if event.split == "val"]


def _last_error(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").rstrip()
    start = text.rfind("error")
    return text[start:][:500] if start >= 0 else text[-500:] or f"no output; see {log}"


LEARNING_CURVE = {"evaluation.per_epoch": 8}
"""The default times of evaluation: pruning needs a curve."""
THREADS = "trainer.threads"
"""A setting of every trial that decides no result."""


def common_settings(config: TuneConfig, typed: Settings) -> Json:
    """Settings of every trial: the typed ones of dlrm-train, the times of evaluation, and the trial's share of cores."""
    settings = {key: value for key, value in typed.items() if key != "output" and not key.startswith("tune.")}
    if config.evaluation.every_steps is None and config.evaluation.per_epoch is None:
        settings |= LEARNING_CURVE
    if config.trainer.threads is None and config.tune.jobs > 1:
        settings[THREADS] = max(1, len(os.sched_getaffinity(0)) // config.tune.jobs)
    return settings


def distribution(entry: Json) -> CategoricalDistribution | IntDistribution | FloatDistribution:
    """The distribution of an entry of ``tune.space``. Lists among choices are turned into text."""
    if "choices" in entry:
        return CategoricalDistribution(list(map(_choice, entry["choices"])))
    low, high, step, log = entry["low"], entry["high"], entry.get("step"), entry.get("log", False)
    if all(isinstance(value, int) for value in (low, high, step or 1)):
        return IntDistribution(low, high, log, step or 1)
    return FloatDistribution(low, high, log, step)


def known_values(config: TuneConfig) -> Json:
    """Key → value in ``config``, for each entry of ``tune.space`` that could draw that value."""
    values, found = dict(leaves(asdict(config))), {}
    for entry in config.tune.space:
        value = _choice(values.get(entry["key"]))
        is_known = (
            isinstance(value, int | float) and "low" in entry and entry["low"] <= value <= entry["high"]
        )
        if is_known or value in map(_choice, entry.get("choices", ())):
            found[entry["key"]] = value
    return found


def _choice(value: Any) -> Any:
    """``value`` for Optuna, which takes no lists: they become JSON."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value


def drawn_settings(drawn: Mapping[str, object]) -> Json:
    """Key → value of the values that Optuna has drawn."""
    return {
        key: json.loads(value) if isinstance(value, str) and value.startswith("[") else value
        for key, value in drawn.items()
    }


@dataclass(frozen=True)
class StudySettings:
    """The settings that all trials of a study have. ``settings``: for dlrm-train."""

    metric: str
    settings: Json
    format: str = field(default="dlrm-study", metadata=ALWAYS)
    version: int = field(default=1, metadata=ALWAYS)


SETTINGS_FILE = "study.json"
_FORMAT = Format(StudySettings, "take it from a copy, or choose another output")


def read_study_settings(output: Path) -> StudySettings | None:
    """The settings of the study in ``output``; None if it is new. Raises DataError if they are damaged."""
    path = output / SETTINGS_FILE
    return _FORMAT.read(path) if path.is_file() else None


def write_study_settings(output: Path, metric: str, common: Settings) -> None:
    """Writes the settings of a new study, or refuses others.

    Raises DlrmError if the study has another metric or other settings, so that trials could not be compared. The
    number of threads decides no result.
    """
    now = StudySettings(metric, with_urls({key: value for key, value in common.items() if key != THREADS}))
    before = read_study_settings(output)
    if before is None:
        _FORMAT.write(output / SETTINGS_FILE, now)
    elif before.metric != metric:
        raise DlrmError(
            f"the study in {output} compares {before.metric}, not tune.metric={metric}: "
            f"set tune.metric={before.metric}, or choose another output"
        )
    elif before.settings != now.settings:
        raise DlrmError(
            f"the trials in output={output} have the settings {' '.join(words_of(before.settings))}, this command has "
            f"{' '.join(words_of(now.settings))}: give the same settings, or choose another output"
        )


def refuse_other_space(study: optuna.Study, output: Path, space: Sequence[Json]) -> None:
    """Raises DlrmError if the trials of ``study`` draw other kinds of values than ``space`` describes."""
    for trial in study.get_trials(deepcopy=False):
        for entry in space:
            key, drawn = entry["key"], distribution(entry)
            try:
                check_distribution_compatibility(trial.distributions.get(key, drawn), drawn)
            except ValueError as error:
                raise DlrmError(
                    f"the trials in output={output} draw {key} from {trial.distributions[key]}, tune.space from "
                    f"{drawn}: only the ends of a range may change; choose another output"
                ) from error


def final_command(common: Settings, values: Mapping[str, object]) -> str:
    """The command that trains with the values of a trial and evaluates on test at the end."""
    shown = {
        key: value
        for key, value in common.items()
        if key != THREADS and LEARNING_CURVE.get(key, ...) != value
    }
    settings = {**shown, **drawn_settings(values), "output": "BEST"}
    return " ".join(["dlrm-train", *(setting(key, value) for key, value in settings.items())])
