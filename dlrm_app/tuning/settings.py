"""What trials are told, as dlrm-train takes it: what they have in common, and the values of one."""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import optuna

from dlrm_app.config.tune import TuneConfig
from dlrm_app.display.command_line import setting

LEARNING_CURVE = "evaluation.per_epoch=8"
"""Where nothing says when to evaluate: without a curve there is nothing to give up by."""


def common_settings(config: TuneConfig, typed: Sequence[str]) -> list[str]:
    """What every trial is told: what was typed, when to evaluate, and its share of the cores."""
    settings = [*typed]
    if config.evaluation.every_steps is None and config.evaluation.per_epoch is None:
        settings.append(LEARNING_CURVE)
    if config.trainer.threads is None and config.tune.jobs > 1:
        threads = max(1, len(os.sched_getaffinity(0)) // config.tune.jobs)
        settings.append(f"trainer.threads={threads}")
    return settings


def propose(trial: optuna.Trial, space: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Key → value of every entry of ``space``; a list as the text that one types."""
    values: dict[str, object] = {}
    for entry in space:
        key = entry["key"]
        if "choices" in entry:
            choices = [
                str(each).replace(" ", "") if isinstance(each, list) else each for each in entry["choices"]
            ]
            values[key] = trial.suggest_categorical(key, choices)
            continue
        low, high, step, log = entry["low"], entry["high"], entry.get("step"), entry.get("log", False)
        if all(isinstance(value, int) for value in (low, high, step or 1)):
            values[key] = trial.suggest_int(key, low, high, step=step or 1, log=log)
        else:
            values[key] = trial.suggest_float(key, low, high, step=step, log=log)
    return values


def typed_values(values: Mapping[str, Any]) -> list[str]:
    """``key=value`` for each, as a shell takes it."""
    return [
        shlex.quote(f"{key}={value}") if str(value).startswith("[") else setting(key, value)
        for key, value in values.items()
    ]


def final_command(common: Sequence[str], values: Mapping[str, Any]) -> str:
    """What trains with the values of a trial, and evaluates on test at its end."""
    shown = [word for word in common if word != LEARNING_CURVE and not word.startswith("trainer.threads=")]
    return " ".join(["dlrm-train", *shown, *typed_values(values), "output=BEST"])
