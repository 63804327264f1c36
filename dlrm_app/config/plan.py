"""The configuration of dlrm-plan. Values and their explanations stand in conf/plan.yaml and conf/train.yaml."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from dlrm_app.config.checks import at_least_zero
from dlrm_app.config.train import DataConfig, TrainConfig


@dataclass(slots=True)
class PlanDataConfig(DataConfig):
    path: str | None = None  # type: ignore[assignment]  # table specs may say all that a dataset would


@dataclass(slots=True)
class PlanConfig(TrainConfig):
    """Its keys are dlrm-train's, recipes too, so that the same words plan what they would train."""

    data: PlanDataConfig = field(default_factory=PlanDataConfig)
    smallest: bool = MISSING
    num_dense: int = MISSING

    def problems(self) -> list[str]:
        """What types cannot express, each with what to do about it."""
        problems = [*TrainConfig.problems(self), *at_least_zero("num_dense", self.num_dense)]
        if not self.topology.is_described:
            problems.append(
                "topology=auto is what dlrm-train finds when it starts; describe a cluster to plan for, as "
                "topology=a100_80g_8 or topology=custom"
            )
        if self.tables.from_dataset and not self.data.path:
            problems.append("tables=dataset needs the dataset: add data.path=DIR, or choose tables=FILE.yaml")
        return problems
