"""The configurations of dlrm-plan, dlrm-bench and dlrm-tune: dlrm-train's keys, recipes too, and their own.

So the same words say what to plan, measure or tune. Values and explanations stand in conf/train.yaml and conf/<command>.yaml.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from msgspec import Meta

from dlrm_app.config.schema import (
    REQUIRED,
    Count,
    Section,
    Whole,
    required,
    type_of,
    type_problem,
    unknown_key,
)
from dlrm_app.config.train import DataConfig, TrainConfig
from dlrm_app.errors import Problem
from dlrm_app.text import install_command

Measured = Literal["loader", "model", "step"]
NOT_TUNED = ("output", "resume")
"""Keys that the study sets itself."""


@dataclass(slots=True)
class PlanDataConfig(DataConfig):
    path: str | None = None  # type: ignore[assignment]  # table specs may say all that a dataset would


@dataclass(slots=True)
class PlanConfig(TrainConfig):
    data: PlanDataConfig = field(default_factory=PlanDataConfig)
    smallest: bool = REQUIRED
    num_dense: Whole = REQUIRED

    def rules(self, prefix: str) -> list[Problem]:
        """A cluster and tables must be named."""
        problems = TrainConfig.rules(self, prefix)
        if not self.topology.is_described:
            cure = "choose one, as topology=a100_80g_8 or topology=custom"
            problems.append(Problem("topology", "must describe the cluster to plan for", cure))
        if self.tables.from_dataset and not self.data.path:
            problems.append(_no_tables("choose tables=FILE.yaml"))
        return problems


@dataclass(slots=True)
class BenchConfig(TrainConfig):
    data: PlanDataConfig = field(default_factory=PlanDataConfig)
    measure: list[Measured] = REQUIRED
    warm_up: Whole = REQUIRED
    steps: Count = REQUIRED
    num_dense: Whole = REQUIRED

    @property
    def writes_topology(self) -> bool:
        """True if ``output`` is a topology file of this machine, in place of a folder for what a run takes."""
        return self.output is not None and self.output.endswith((".yaml", ".yml"))

    def rules(self, prefix: str) -> list[Problem]:
        """Something to measure, and rows for it."""
        problems = TrainConfig.rules(replace(self, resume="none"), prefix)
        if not self.measure:
            problems.append(Problem("measure", "is empty", "name some of what --help lists"))
        if self.tables.from_dataset and self.data.path is None and not self.writes_topology:
            problems.append(_no_tables("choose tables=FILE.yaml for synthetic rows"))
        if self.resume != "none":
            rule = "has no part in dlrm-bench, whose weights are initial ones"
            problems.append(Problem("resume", rule, "leave it out"))
        return problems


def _no_tables(cure: str) -> Problem:
    return Problem("tables=dataset", "needs the dataset", f"add data.path=DIR, or {cure}")


@dataclass(slots=True)
class TuneSettings(Section):
    trials: Count = REQUIRED
    jobs: Count = REQUIRED
    metric: Literal["auc", "logloss"] = REQUIRED
    prune: bool = REQUIRED
    startup_trials: Whole = REQUIRED
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = REQUIRED
    space: list[Any] = field(default_factory=list)

    def rules(self, prefix: str) -> list[Problem]:
        """Keys that are not dlrm-train's, and values that they do not take."""
        if not self.space:
            return [Problem(f"{prefix}space", "is empty", "name at least one key and its values")]
        keys = [entry.get("key") for entry in self.space if isinstance(entry, Mapping)]
        twice = {key for key in keys if keys.count(key) > 1}
        problems = [Problem(f"{prefix}space", f"names {key} twice", "once is enough") for key in twice]
        for number, entry in enumerate(self.space):
            problems += _entry_problems(f"{prefix}space[{number}]", entry)
        return problems


@dataclass(slots=True)
class TuneConfig(TrainConfig):
    tune: TuneSettings = field(default_factory=TuneSettings)

    def rules(self, prefix: str) -> list[Problem]:
        """A folder for the study, which resumes by itself, and optuna."""
        problems = TrainConfig.rules(replace(self, resume="none"), prefix)
        if not self.output:
            problems.append(required("output"))
        if self.resume != "none":
            rule = "has no part in dlrm-tune, which resumes the study in output"
            problems.append(Problem("resume", rule, "leave it out"))
        if find_spec("optuna") is None:
            rule = "needs the package optuna, which is not installed"
            problems.append(Problem("dlrm-tune", rule, install_command("tune")))
        return problems


def _entry_problems(name: str, entry: Any) -> list[Problem]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("key"), str):
        rule = "must hold a key of dlrm-train and its values, as {key: model.dropout, low: 0, high: 0.4}"
        return [Problem(name, rule, value=entry)]
    key = entry["key"]
    kind = type_of(key, TrainConfig)
    if key in NOT_TUNED or key.startswith("tune."):
        return [Problem(name, f"names {key}, which the study itself decides", "leave it out")]
    if kind is None:
        return [unknown_key(key, TrainConfig)]
    if set(entry) == {"key", "choices"}:
        choices = entry["choices"]
        if not isinstance(choices, list) or len(set(map(str, choices))) < max(2, len(choices)):
            return [Problem(name, f"must give {key} at least two choices, each once", value=choices)]
        return [fault for value in choices if (fault := type_problem(key, value, kind))]
    if not {"low", "high"} <= set(entry) <= {"key", "low", "high", "log", "step"}:
        rule = f"must give {key} low and high (with log or step), or choices"
        return [Problem(name, rule, value=", ".join(entry))]
    if type_problem(key, "x", kind) is None:
        return [Problem(name, f"gives {key}, a text, a range", f"give {{key: {key}, choices: [a, b]}}")]
    faults = [type_problem(key, entry[end], kind) for end in ("low", "high")]
    return _range_problems(name, entry) or [fault for fault in faults if fault is not None]


def _range_problems(name: str, entry: Mapping[str, Any]) -> list[Problem]:
    low, high, step = entry["low"], entry["high"], entry.get("step")
    numbers = [value for value in (low, high, step) if value is not None]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        return [Problem(name, "must have numbers for low, high and step", value=numbers)]
    problems = []
    if low >= high:
        problems.append(Problem(name, f"must have low below high, got {low} and {high}"))
    if entry.get("log") and (low <= 0 or step is not None):
        problems.append(Problem(name, f"with log=true must have low above 0 and no step, got {low}, {step}"))
    if not isinstance(entry.get("log", False), bool):
        problems.append(Problem(f"{name}.log", "must be true or false", value=entry["log"]))
    if step is not None and not 0 < step <= high - low:
        problems.append(Problem(f"{name}.step", "must be above 0 and at most high - low", value=step))
    return problems
