"""A trial: the settings that it trains with, its dlrm-train process, and its curve on val, read while it trains."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from dlrm_app.records import leaves
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import read_events
from dlrm_app.text import setting

POLL_SECONDS = 0.5
GRACE_SECONDS = 60
"""Time for a run that is asked to stop to save itself."""
STOPPED = (RESUMABLE, 130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a training that a signal ended, as Ctrl-C does in every process of a terminal: it can be resumed."""
UNSEEN = "evaluation.test=false"
"""A choice by val is made without a look at test."""
TRAIN = (sys.executable, "-m", "dlrm_app.cli", "train")


@dataclass(frozen=True)
class Outcome:
    """``values``: the metric at every evaluation on val; ``was_given_up``: before its end; ``error``: why it failed."""

    values: list[float]
    was_given_up: bool = False
    error: str | None = None


def run_trial(
    folder: Path,
    settings: Sequence[str],
    metric: str,
    goes_on: Callable[[int, float], bool],
    is_stopped: Callable[[], bool] = lambda: False,
    train: Sequence[str] = TRAIN,
    gpu: str | None = None,
) -> Outcome:
    """Trains with ``settings`` in ``folder``, from its newest checkpoint if it has one.

    ``goes_on(number, value)``: asked at every evaluation, of which the first is 0; False gives the run up.
    ``is_stopped()``: True to stop now; the run can be resumed. ``gpu``: the one that it may use; None leaves that open.
    Raises KeyboardInterrupt if a signal ended it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = [*train, *settings, f'output="{folder.absolute()}"', "resume=auto", UNSEEN]
    log = folder.with_suffix(".log")
    with log.open("a", encoding="utf-8") as output:
        environment = {**os.environ, LAUNCHED: "1", **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            reported, has_ended, is_good = 0, False, True
            while not has_ended and is_good and not is_stopped():
                time.sleep(POLL_SECONDS)
                has_ended = process.poll() is not None  # before its values, so that all are seen
                values = curve(folder, metric)
                verdicts = [goes_on(number, values[number]) for number in range(reported, len(values))]
                is_good = all(verdicts)
                reported = len(values)
        finally:
            _stop(process)
    values = curve(folder, metric)
    if not has_ended or process.returncode == 0:
        return Outcome(values, was_given_up=not has_ended)
    if process.returncode in STOPPED:
        raise KeyboardInterrupt
    return Outcome(values, error=_last_error(log))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process, which may save itself before."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def curve(folder: Path, metric: str) -> list[float]:
    """The metric at every evaluation on val that is in the run's metrics so far. Raises DataError if they are damaged."""
    evaluations = (event for event in read_events(folder) if isinstance(event, Evaluation))
    return [event.metrics[metric] for event in evaluations if event.split == "val"]


def _last_error(log: Path) -> str:
    """The process's last words, from ``error:`` on."""
    text = log.read_text(encoding="utf-8", errors="replace").rstrip()
    start = text.rfind("error")
    return text[start:][:500] if start >= 0 else text[-500:] or f"no word; see {log}"


LEARNING_CURVE = "evaluation.per_epoch=8"
"""Where nothing says when to evaluate: without a curve there is nothing to give up by."""


def common_settings(config: TuneConfig, typed: Sequence[str]) -> list[str]:
    """Settings of every trial: those that were typed, when to evaluate, and its share of the cores."""
    settings = [*typed]
    if config.evaluation.every_steps is None and config.evaluation.per_epoch is None:
        settings.append(LEARNING_CURVE)
    if config.trainer.threads is None and config.tune.jobs > 1:
        threads = max(1, len(os.sched_getaffinity(0)) // config.tune.jobs)
        settings.append(f"trainer.threads={threads}")
    return settings


def distribution(entry: Mapping[str, Any]) -> CategoricalDistribution | IntDistribution | FloatDistribution:
    """The distribution that an entry of ``tune.space`` draws from; a list among choices as the text that one types."""
    if "choices" in entry:
        return CategoricalDistribution(list(map(_choice, entry["choices"])))
    low, high, step, log = entry["low"], entry["high"], entry.get("step"), entry.get("log", False)
    if all(isinstance(value, int) for value in (low, high, step or 1)):
        return IntDistribution(low, high, log, step or 1)
    return FloatDistribution(low, high, log, step)


def known_values(config: TuneConfig) -> dict[str, Any]:
    """Key → value of ``config`` for each entry of ``tune.space`` that it could draw."""
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
    """``value`` as optuna takes it: a list as the text that one types."""
    return str(value).replace(" ", "") if isinstance(value, list) else value


def refuse_another_study(
    study: optuna.Study, output: Path, common: Sequence[str], space: Sequence[Mapping[str, Any]]
) -> None:
    """Raises DlrmError if the trials of ``study`` have other settings, or draw other kinds of values: they are compared."""
    now = [word for word in common if not word.startswith("trainer.threads=")]
    before = study.user_attrs.get("settings", now)
    if sorted(before) != sorted(now):
        raise DlrmError(
            f"the trials in output={output} have the settings {' '.join(before)}, this command has {' '.join(now)}: give the "
            "same settings, or choose another output"
        )
    for trial in study.get_trials(deepcopy=False):
        for entry in space:
            key, drawn = entry["key"], distribution(entry)
            try:
                check_distribution_compatibility(trial.distributions.get(key, drawn), drawn)
            except ValueError as error:
                raise DlrmError(
                    f"the trials in output={output} draw {key} from {trial.distributions[key]}, tune.space from {drawn}: "
                    "only the ends of a range may change; choose another output"
                ) from error
    study.set_user_attr("settings", now)


def typed_values(values: Mapping[str, Any]) -> list[str]:
    """``key=value`` for each, as a shell takes it."""
    return [
        shlex.quote(f"{key}={value}") if str(value).startswith("[") else setting(key, value)
        for key, value in values.items()
    ]


def final_command(common: Sequence[str], values: Mapping[str, Any]) -> str:
    """The command that trains with the values of a trial, and evaluates on test at its end."""
    shown = [word for word in common if word != LEARNING_CURVE and not word.startswith("trainer.threads=")]
    return " ".join(["dlrm-train", *shown, *typed_values(values), "output=BEST"])
