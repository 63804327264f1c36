"""The configuration of dlrm-bench. Values and their explanations stand in conf/bench.yaml and conf/train.yaml."""

from dataclasses import dataclass, field, replace

from omegaconf import MISSING

from dlrm_app.config.checks import at_least_zero, one_of, positive
from dlrm_app.config.plan import PlanDataConfig
from dlrm_app.config.train import TrainConfig

MEASURED = ("loader", "model", "step")


@dataclass(slots=True)
class BenchConfig(TrainConfig):
    """Its keys are dlrm-train's, recipes too, so that the same words measure what they would train."""

    data: PlanDataConfig = field(default_factory=PlanDataConfig)
    measure: list[str] = MISSING
    warm_up: int = MISSING
    steps: int = MISSING
    num_dense: int = MISSING

    @property
    def writes_topology(self) -> bool:
        """Whether ``output`` is a topology file of this machine, in place of a folder for what a run takes."""
        return self.output is not None and self.output.endswith((".yaml", ".yml"))

    def problems(self) -> list[str]:
        """What types cannot express, each with what to do about it."""
        problems = [
            *TrainConfig.problems(replace(self, resume="none")),  # of which one rule is enough, below
            *(problem for name in self.measure for problem in one_of("measure", name, MEASURED)),
            *positive("steps", self.steps),
            *at_least_zero("warm_up", self.warm_up),
            *at_least_zero("num_dense", self.num_dense),
        ]
        if not self.measure:
            problems.append(f"measure is empty: name some of {', '.join(MEASURED)}")
        if self.tables.from_dataset and self.data.path is None and not self.writes_topology:
            problems.append(
                "tables=dataset needs the dataset: add data.path=DIR, or choose tables=FILE.yaml for synthetic rows"
            )
        if self.resume != "none":
            problems.append("resume has no part in dlrm-bench, whose weights are initial ones: leave it out")
        return problems
