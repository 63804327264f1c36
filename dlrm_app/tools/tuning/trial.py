"""A trial: its settings, the dlrm-train process that trains with them, and its curve on val."""

import os
import shlex
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
from dlrm_app.distributed.launcher import LAUNCHED, RESUMABLE
from dlrm_app.errors import DlrmError
from dlrm_app.records import ALWAYS, Format, leaves
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import read_events
from dlrm_app.typed import setting

POLL_SECONDS = 0.5
GRACE_SECONDS = 60
"""Seconds for a run to save when it is asked to stop."""
STOPPED = (RESUMABLE, 130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a training that was ended by a signal, such as Ctrl-C in a terminal, and can be resumed."""
NO_TEST = "evaluation.test=false"
"""Keeps trials from evaluating test: the choice is made on val alone."""
TRAIN = (sys.executable, "-m", "dlrm_app.cli", "train")


class TrialError(DlrmError):
    """Raised if a training fails, or gives no value to compare."""


def trained_values(
    folder: Path,
    settings: Sequence[str],
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
    words = [*train, *settings, f'output="{folder.absolute()}"', "resume=auto", NO_TEST]
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
    """Ends the process; it gets time to save."""
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
    """The end of the process's output, from the last ``error`` on."""
    text = log.read_text(encoding="utf-8", errors="replace").rstrip()
    start = text.rfind("error")
    return text[start:][:500] if start >= 0 else text[-500:] or f"no output; see {log}"


LEARNING_CURVE = "evaluation.per_epoch=8"
"""The default times of evaluation: pruning needs a curve."""


def common_settings(config: TuneConfig, typed: Sequence[str]) -> list[str]:
    """Settings of every trial: the typed ones, the times of evaluation, and the trial's share of the cores."""
    settings = [*typed]
    if config.evaluation.every_steps is None and config.evaluation.per_epoch is None:
        settings.append(LEARNING_CURVE)
    if config.trainer.threads is None and config.tune.jobs > 1:
        threads = max(1, len(os.sched_getaffinity(0)) // config.tune.jobs)
        settings.append(f"trainer.threads={threads}")
    return settings


def distribution(entry: Mapping[str, Any]) -> CategoricalDistribution | IntDistribution | FloatDistribution:
    """The distribution of an entry of ``tune.space``. Lists among choices are turned into text."""
    if "choices" in entry:
        return CategoricalDistribution(list(map(_choice, entry["choices"])))
    low, high, step, log = entry["low"], entry["high"], entry.get("step"), entry.get("log", False)
    if all(isinstance(value, int) for value in (low, high, step or 1)):
        return IntDistribution(low, high, log, step or 1)
    return FloatDistribution(low, high, log, step)


def known_values(config: TuneConfig) -> dict[str, Any]:
    """Key → value in ``config``, for each entry of ``tune.space`` that could draw that value."""
    values, known = dict(leaves(asdict(config))), {}
    for entry in config.tune.space:
        value = _choice(values.get(entry["key"]))
        is_known = (
            isinstance(value, int | float) and "low" in entry and entry["low"] <= value <= entry["high"]
        )
        if is_known or value in map(_choice, entry.get("choices", ())):
            known[entry["key"]] = value
    return known


def _choice(value: Any) -> Any:
    """``value`` for Optuna: a list is turned into text, as it is typed."""
    return str(value).replace(" ", "") if isinstance(value, list) else value


@dataclass(frozen=True)
class StudySettings:
    """The settings that all trials of a study have. ``settings``: for dlrm-train."""

    metric: str
    settings: list[str]
    format: str = field(default="dlrm-study", metadata=ALWAYS)
    version: int = field(default=1, metadata=ALWAYS)


SETTINGS_FILE = "study.json"
_FORMAT = Format(StudySettings, "take it from a copy, or choose another output")


def read_study_settings(output: Path) -> StudySettings | None:
    """The settings of the study in ``output``; None if it is new. Raises DataError if they are damaged."""
    path = output / SETTINGS_FILE
    return _FORMAT.read(path) if path.is_file() else None


def write_study_settings(output: Path, metric: str, common: Sequence[str]) -> None:
    """Writes the settings of a new study, or refuses others.

    Raises DlrmError if the study has another metric or other settings, so that trials could not be compared. The
    number of threads decides no result.
    """
    now = StudySettings(metric, [word for word in common if not word.startswith("trainer.threads=")])
    before = read_study_settings(output)
    if before is None:
        _FORMAT.write(output / SETTINGS_FILE, now)
    elif before.metric != metric:
        raise DlrmError(
            f"the study in {output} compares {before.metric}, not tune.metric={metric}: "
            f"set tune.metric={before.metric}, or choose another output"
        )
    elif sorted(before.settings) != sorted(now.settings):
        raise DlrmError(
            f"the trials in output={output} have the settings {' '.join(before.settings)}, this command has "
            f"{' '.join(now.settings)}: give the same settings, or choose another output"
        )


def refuse_other_space(study: optuna.Study, output: Path, space: Sequence[Mapping[str, Any]]) -> None:
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


def typed_values(values: Mapping[str, Any]) -> list[str]:
    """``key=value`` for each value, quoted for a shell."""
    return [
        shlex.quote(f"{key}={value}") if str(value).startswith("[") else setting(key, value)
        for key, value in values.items()
    ]


def final_command(common: Sequence[str], values: Mapping[str, Any]) -> str:
    """The command that trains with the values of a trial and evaluates on test at the end."""
    shown = [word for word in common if word != LEARNING_CURVE and not word.startswith("trainer.threads=")]
    return " ".join(["dlrm-train", *shown, *typed_values(values), "output=BEST"])
