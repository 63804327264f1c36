"""The configuration of dlrm-tune. Values and their explanations stand in conf/tune.yaml and conf/train.yaml."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from omegaconf import MISSING

from dlrm_app.config.checks import at_least_zero, one_of, positive, within
from dlrm_app.config.extras import install_command
from dlrm_app.config.optimizer import PLATEAU_METRICS
from dlrm_app.config.schema import required, type_of, type_problem, unknown_key
from dlrm_app.config.train import TrainConfig

NOT_TUNED = ("output", "resume")
"""Keys that the study sets itself."""


@dataclass(slots=True)
class TuneSettings:
    trials: int = MISSING
    jobs: int = MISSING
    metric: str = MISSING
    prune: bool = MISSING
    startup_trials: int = MISSING
    seed: int = MISSING
    space: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class TuneConfig(TrainConfig):
    """Its keys are dlrm-train's, recipes too, so that the same words say what every trial has in common."""

    tune: TuneSettings = field(default_factory=TuneSettings)

    def problems(self) -> list[str]:
        """What types cannot express, each with what to do about it."""
        problems = [
            *TrainConfig.problems(replace(self, resume="none")),  # of which one rule is enough, below
            *positive("tune.trials", self.tune.trials),
            *positive("tune.jobs", self.tune.jobs),
            *one_of("tune.metric", self.tune.metric, PLATEAU_METRICS),
            *at_least_zero("tune.startup_trials", self.tune.startup_trials),
            *within("tune.seed", self.tune.seed, 0, 2**31 - 1),
        ]
        if not self.output:
            problems.append(str(required("output")))
        if self.resume != "none":
            problems.append(
                "resume has no part in dlrm-tune, which goes on with the study in output: leave it out"
            )
        if not self.tune.space:
            problems.append("tune.space is empty: name at least one key and its values")
        keys = [entry.get("key") for entry in self.tune.space if isinstance(entry, Mapping)]
        problems += [
            f"tune.space names {key} twice: once is enough" for key in set(keys) if keys.count(key) > 1
        ]
        for number, entry in enumerate(self.tune.space):
            problems += _entry_problems(f"tune.space[{number}]", entry)
        if find_spec("optuna") is None:
            problems.append(
                f"dlrm-tune needs the package optuna, which is not installed: {install_command('tune')}"
            )
        return problems


def _entry_problems(name: str, entry: Any) -> list[str]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("key"), str):
        return [
            f"{name} must hold a key of dlrm-train and its values, as {{key: model.dropout, low: 0, high: 0.4}}, got {entry}"
        ]
    key = entry["key"]
    kind = type_of(key, TrainConfig)
    if key in NOT_TUNED or key.startswith("tune."):
        return [f"{name}: {key} is what the study itself decides: leave it out"]
    if kind is None:
        return [f"{name}: {unknown_key(key, TrainConfig)}"]
    if set(entry) == {"key", "choices"}:
        choices = entry["choices"]
        if not isinstance(choices, list) or len(choices) < 2:
            return [f"{name}: choices of {key} must be a list of at least two values, got {choices}"]
        if len(set(map(str, choices))) < len(choices):
            return [f"{name}: choices of {key} must differ, got {choices}: name each once"]
        return [f"{name}: {fault}" for value in choices if (fault := type_problem(key, value, kind))]
    if not {"low", "high"} <= set(entry) <= {"key", "low", "high", "log", "step"}:
        return [f"{name}: {key} takes low and high (with log or step), or choices, got {', '.join(entry)}"]
    if type_problem(key, "x", kind) is None:
        return [f"{name}: {key} takes text, which has no range: give {{key: {key}, choices: [a, b]}}"]
    return _range_problems(name, entry) or [
        f"{name}: {fault}: give choices, or other ends"
        for end in ("low", "high")
        if (fault := type_problem(key, entry[end], kind))
    ]


def _range_problems(name: str, entry: Mapping[str, Any]) -> list[str]:
    low, high, step = entry["low"], entry["high"], entry.get("step")
    numbers = [value for value in (low, high, step) if value is not None]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        return [f"{name}: low, high and step must be numbers, got {numbers}"]
    problems = []
    if low >= high:
        problems.append(f"{name}: low must be below high, got {low} and {high}")
    if entry.get("log") and (low <= 0 or step is not None):
        problems.append(f"{name}: log=true needs low above 0 and no step, got low {low}, step {step}")
    if not isinstance(entry.get("log", False), bool):
        problems.append(f"{name}: log must be true or false, got {entry['log']!r}")
    if step is not None and not 0 < step <= high - low:
        problems.append(f"{name}: step must be above 0 and at most high - low, got {step}")
    return problems
