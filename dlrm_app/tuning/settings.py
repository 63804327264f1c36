"""What trials are told, as dlrm-train takes it: what they have in common, and the values of one."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)

from dlrm_app.config.tune import TuneConfig
from dlrm_app.errors import DlrmError
from dlrm_app.text import setting

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
        key, drawn = entry["key"], distribution(entry)
        if isinstance(drawn, CategoricalDistribution):
            values[key] = trial.suggest_categorical(key, drawn.choices)
        elif isinstance(drawn, IntDistribution):
            values[key] = trial.suggest_int(key, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
        else:
            values[key] = trial.suggest_float(key, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
    return values


def distribution(entry: Mapping[str, Any]) -> CategoricalDistribution | IntDistribution | FloatDistribution:
    """From what an entry of ``tune.space`` draws."""
    if "choices" in entry:
        return CategoricalDistribution(
            [str(each).replace(" ", "") if isinstance(each, list) else each for each in entry["choices"]]
        )
    low, high, step, log = entry["low"], entry["high"], entry.get("step"), entry.get("log", False)
    if all(isinstance(value, int) for value in (low, high, step or 1)):
        return IntDistribution(low, high, log, step or 1)
    return FloatDistribution(low, high, log, step)


def refuse_another_study(
    study: optuna.Study, output: Path, common: Sequence[str], space: Sequence[Mapping[str, Any]]
) -> None:
    """Raises DlrmError if the trials of ``study`` train otherwise, or draw other kinds of values: they are compared."""
    now = sorted(word for word in common if not word.startswith("trainer.threads="))
    before = study.user_attrs.get("settings", now)
    if before != now:
        raise DlrmError(
            f"the trials in output={output} have {_words(before, now)}, this command has {_words(now, before)}: give "
            "what they have, or choose another output"
        )
    for trial in study.get_trials(deepcopy=False):
        for entry in space:
            key, drawn = entry["key"], distribution(entry)
            try:
                check_distribution_compatibility(trial.distributions.get(key, drawn), drawn)
            except ValueError as error:
                raise DlrmError(
                    f"the trials in output={output} draw {key} from {_told(trial.distributions[key])}, tune.space from {_told(drawn)}: "
                    "only the ends of a range may change; choose another output"
                ) from error
    study.set_user_attr("settings", now)


def _told(drawn: BaseDistribution) -> str:
    if isinstance(drawn, CategoricalDistribution):
        return f"the choices {', '.join(map(str, drawn.choices))}"
    assert isinstance(drawn, IntDistribution | FloatDistribution)
    numbers = "whole numbers" if isinstance(drawn, IntDistribution) else "numbers"
    return f"{numbers} {drawn.low} to {drawn.high}" + " on a log scale" * drawn.log


def _words(these: Sequence[str], those: Sequence[str]) -> str:
    return " ".join(word for word in these if word not in those) or "no such setting"


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
