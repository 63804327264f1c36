"""The configuration of dlrm-plan. Values and their explanations stand in conf/plan.yaml and its groups."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from dlrm_app.config.checks import positive
from dlrm_app.config.optimizer import OptimizerConfig
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.config.train import TablesConfig


@dataclass(slots=True)
class PlanDataConfig:
    path: str | None = None


@dataclass(slots=True)
class PlanTrainerConfig:
    global_batch_size: int = MISSING


@dataclass(slots=True)
class PlanConfig:
    """Its keys are dlrm-train's, so that both are given the same words."""

    data: PlanDataConfig = field(default_factory=PlanDataConfig)
    tables: TablesConfig = field(default_factory=TablesConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    trainer: PlanTrainerConfig = field(default_factory=PlanTrainerConfig)
    smallest: bool = MISSING
    output: str | None = None

    def problems(self) -> list[str]:
        """What types cannot express, each with its cure."""
        problems = [
            *positive("trainer.global_batch_size", self.trainer.global_batch_size),
            *self.optimizer.problems(),
            *self.sharding.problems(),
            *self.topology.problems(),
        ]
        if not self.topology.is_described:
            problems.append(
                "topology=auto is what dlrm-train finds when it starts; describe a cluster to plan for, as "
                "topology=a100_80g_8 or topology=custom"
            )
        if self.tables.from_dataset and self.data.path is None:
            problems.append("tables=dataset needs the dataset: add data.path=DIR, or choose tables=FILE.yaml")
        return problems
