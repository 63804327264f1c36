"""The configurations of dlrm-plan and dlrm-tune: dlrm-train's keys and recipes, and their own keys.

So the same settings plan or tune a training. Values and explanations are in conf/train.yaml and conf/<command>.yaml.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Annotated, Any

from msgspec import Meta

from dlrm_app.config.metrics import deciding_problems
from dlrm_app.config.schema import REQUIRED, Section, is_section, required, type_of, unknown_key
from dlrm_app.config.train import DataConfig, TrainConfig
from dlrm_app.config.values import Count, Whole, type_problem
from dlrm_app.errors import Problem
from dlrm_app.typed import install_command

NOT_TUNED = ("output", "resume")
"""Keys that the study sets itself."""


@dataclass(slots=True)
class PlanDataConfig(DataConfig):
    path: str | None = None  # type: ignore[assignment]  # table specs can replace a dataset


@dataclass(slots=True)
class PlanConfig(TrainConfig):
    data: PlanDataConfig = field(default_factory=PlanDataConfig)
    smallest: bool = REQUIRED
    num_dense: Whole = REQUIRED

    def rules(self) -> Iterator[Problem]:
        yield from TrainConfig.rules(self)
        if not self.topology.is_described:
            cure = "choose one, as topology=a100_80g_8 or topology=custom"
            yield Problem("topology", "must describe the cluster to plan for", cure)
        if self.tables.from_dataset and not self.data.path:
            cure = "add data.path=DIR, or choose tables=FILE.yaml"
            yield Problem("tables=dataset", "needs the dataset", cure)


@dataclass(slots=True)
class TuneSettings(Section):
    trials: Count = REQUIRED
    jobs: Count = REQUIRED
    metric: str | None = None
    prune: bool = REQUIRED
    startup_trials: Whole = REQUIRED
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = REQUIRED
    space: list[Any] = field(default_factory=list)

    def rules(self) -> Iterator[Problem]:
        if not self.space:
            yield Problem("space", "is empty", "name at least one key and its values")
        keys = [entry.get("key") for entry in self.space if isinstance(entry, Mapping)]
        for key in {key for key in keys if keys.count(key) > 1}:
            yield Problem("space", f"names {key} twice", "once is enough")


@dataclass(slots=True)
class TuneConfig(TrainConfig):
    tune: TuneSettings = field(default_factory=TuneSettings)

    @property
    def metric(self) -> str:
        """The name of the metric on val that compares trials."""
        return self.tune.metric or self.evaluation.best

    def rules(self) -> Iterator[Problem]:
        yield from TrainConfig.rules(replace(self, resume="none"))
        if not self.output:
            yield required("output")
        if self.resume != "none":
            rule = "has no part in dlrm-tune, which resumes the study in output"
            yield from self.needless("resume", rule=rule)
        if find_spec("optuna") is None:
            rule = "needs the package optuna, which is not installed"
            yield Problem("dlrm-tune", rule, install_command("tune"))
        if self.tune.metric is not None:
            measured = self.evaluation.group_by, self.evaluation.ranking
            yield from deciding_problems("tune.metric", self.tune.metric, *measured)
        for number, entry in enumerate(self.tune.space):
            yield from _entry_problems(f"tune.space[{number}]", entry)


def _entry_problems(name: str, entry: object) -> Iterator[Problem]:
    if not isinstance(entry, Mapping) or not isinstance(key := entry.get("key"), str):
        rule = "must hold a key of dlrm-train and its values, as {key: model.dropout, low: 0, high: 0.4}"
        yield Problem(name, rule, value=entry)
        return
    kind, values = type_of(key, TrainConfig), []
    if key in NOT_TUNED:
        yield Problem(name, f"names {key}, which the study itself decides", "leave it out")
    elif kind is None:
        yield unknown_key(key, TrainConfig)
    elif is_section(kind):
        yield Problem(name, f"names {key}, which holds several keys", f"name one, as {key}.NAME")
    elif set(entry) == {"key", "choices"}:
        values = entry["choices"] if isinstance(entry["choices"], list) else []
        if len(set(map(str, values))) < max(2, len(values)):
            yield Problem(name, f"must give {key} at least two choices, each once", value=entry["choices"])
    elif {"low", "high"} <= set(entry) <= {"key", "low", "high", "log", "step"} and _is_range(entry):
        values = [entry["low"], entry["high"]]
        if type_problem(key, "x", kind) is None:
            yield Problem(name, f"gives {key}, a text, a range", f"give {{key: {key}, choices: [a, b]}}")
    else:
        rule = (
            f"must give {key} choices, or numbers low < high; with log: true low is above 0 and there is no step, "
            "and a step is at most high - low"
        )
        yield Problem(name, rule, value=dict(entry))
    yield from (fault for value in values if (fault := type_problem(key, value, kind)))


def _is_range(entry: Mapping[str, Any]) -> bool:
    low, high, log, step = entry["low"], entry["high"], entry.get("log", False), entry.get("step")
    numbers = [low, high] if step is None else [low, high, step]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        return False
    fits = step is None or (0 < step <= high - low and not log)
    return isinstance(log, bool) and low < high and fits and not (log and low <= 0)
