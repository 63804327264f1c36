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
        problems += _no_resume(self, "dlrm-bench, whose weights are initial ones")
        return problems


def _no_tables(cure: str) -> Problem:
    return Problem("tables=dataset", "needs the dataset", f"add data.path=DIR, or {cure}")


def _no_resume(config: TrainConfig, command: str) -> list[Problem]:
    return [] if config.resume == "none" else [Problem("resume", f"has no part in {command}", "leave it out")]


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
        problems += _no_resume(self, "dlrm-tune, which resumes the study in output")
        if find_spec("optuna") is None:
            rule = "needs the package optuna, which is not installed"
            problems.append(Problem("dlrm-tune", rule, install_command("tune")))
        return problems


def _entry_problems(name: str, entry: Any) -> list[Problem]:
    key = entry.get("key") if isinstance(entry, Mapping) else None
    if not isinstance(key, str):
        rule = "must hold a key of dlrm-train and its values, as {key: model.dropout, low: 0, high: 0.4}"
        return [Problem(name, rule, value=entry)]
    kind = type_of(key, TrainConfig)
    if key in NOT_TUNED:
        return [Problem(name, f"names {key}, which the study itself decides", "leave it out")]
    if kind is None:
        return [unknown_key(key, TrainConfig)]
    if set(entry) == {"key", "choices"}:
        values = entry["choices"]
        if not isinstance(values, list) or len(set(map(str, values))) < max(2, len(values)):
            return [Problem(name, f"must give {key} at least two choices, each once", value=values)]
    elif {"low", "high"} <= set(entry) <= {"key", "low", "high", "log", "step"} and _is_range(entry):
        values = [entry["low"], entry["high"]]
        if type_problem(key, "x", kind) is None:
            return [Problem(name, f"gives {key}, a text, a range", f"give {{key: {key}, choices: [a, b]}}")]
    else:
        rule = (
            f"must give {key} choices, or numbers low < high; with log: true low is above 0 and there is no step, and a step "
            "is at most high - low"
        )
        return [Problem(name, rule, value=dict(entry))]
    return [fault for value in values if (fault := type_problem(key, value, kind))]


def _is_range(entry: Mapping[str, Any]) -> bool:
    low, high, log, step = entry["low"], entry["high"], entry.get("log", False), entry.get("step")
    numbers = [low, high] if step is None else [low, high, step]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        return False
    fits = step is None or (0 < step <= high - low and not log)
    return isinstance(log, bool) and low < high and fits and not (log and low <= 0)
