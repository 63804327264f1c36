"""dlrm-plan: places the tables of a model on a described cluster, and computes the floor of a step."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.dataset.shard_files import mean_ids
from dlrm_app.dataset.vector_columns import sizes_of
from dlrm_app.errors import ConfigError
from dlrm_app.files import explained_disk_errors
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.result import Paragraph, Result
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.floor import dense_work, described_rates, step_floor
from dlrm_app.sharding.plan import EstimatedPlan, plan_text, to_plan
from dlrm_app.sharding.plan_file import write_plan
from dlrm_app.sharding.planner import find_assignment
from dlrm_app.sharding.search import smallest_cluster
from dlrm_app.tables.table import with_pooling_factors
from dlrm_app.training.validation import batch_problems, check_plan, plan_workload


@dataclass(frozen=True)
class PlannedCluster(Result):
    """A plan.

    ``floor``: the text about the floor of a step.
    ``smallest``: the smallest cluster that the tables fit on, if it was asked for.
    ``path``: the plan's file, if it was written.
    ``batch_problems``: settings that dlrm-train will refuse on this cluster.
    """

    plan: EstimatedPlan
    floor: str
    smallest: Cluster | None
    path: Path | None
    batch_problems: list[str]

    def paragraphs(self) -> Iterable[Paragraph]:
        yield plan_text(self.plan)
        yield self.floor
        if self.smallest is not None:
            yield f"the smallest cluster of these devices that the tables fit on: {self.smallest}"
        if self.path is not None:
            yield f"wrote {self.path}"
        else:
            yield "output=FOLDER writes the plan as plan.yaml, for dlrm-train"


def plan_cluster(config: PlanConfig) -> PlannedCluster:
    """Plans, and writes plan.yaml if ``output`` names a folder.

    Needs no GPUs and no process group. Raises DlrmError if the tables do not fit, with settings that make them fit.
    """
    cluster, manifest, tables = check_plan(config)
    if manifest is not None:
        tables = with_pooling_factors(tables, mean_ids(manifest))
    work = plan_workload(config, tables, cluster.device)
    plan = to_plan(find_assignment(work, cluster), dict.fromkeys(work.tables, ""), work, cluster)
    num_dense = config.num_dense if manifest is None else len(manifest.dense)
    labels, vectors = ([], {}) if manifest is None else (manifest.labels, sizes_of(manifest.vectors))
    spec = ModelSpec(config.model, tables, num_dense, labels=labels, vectors=vectors)
    floor = floor_text(config, plan, spec)
    smallest = path = None
    if config.smallest and config.sharding.plan is None:  # a plan from a file is only for its own ranks
        smallest = smallest_cluster(work, cluster)
    if config.output is not None:
        folder = Path(config.output)
        with explained_disk_errors(folder, "then plan again"):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "plan.yaml"
            write_plan(path, plan)
    # rows and ranks do not change the plan
    batch_size = config.trainer.global_batch_size
    problems = batch_problems(batch_size, config.data.lanes, cluster.num_ranks, rows=batch_size)
    return PlannedCluster(plan, floor, smallest, path, [*map(str, problems)])


def floor_text(config: PlanConfig, plan: EstimatedPlan, spec: ModelSpec) -> str:
    """The floor of a step as text, or the reason why there is none: tables can be planned without a fitting model."""
    trainer = config.trainer
    try:
        model = build_model(spec, torch.device("meta"))
    except ConfigError as error:
        return f"no floor of a step: {error}"
    weights = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    rows, tables = trainer.global_batch_size // plan.cluster.num_ranks, spec.given_tables
    dense = dense_work(weights, config.model, tables, rows, config.optimizer.dense.kind)
    rates = described_rates(config.topology, plan.cluster, trainer.precision, trainer.tf32)
    floor = step_floor(plan, dense, config.sharding.collectives, rates)
    least = f"{1000 * floor.seconds:,.3g} ms"
    most = f"{trainer.global_batch_size / floor.seconds:,.0f} samples/s"
    return "\n".join(
        [
            f"floor of a step: {least}, limited by {floor.limit}; at most {most}",
            *(f"  {name}: at least {1000 * value:,.3g} ms" for name, value in floor.by_resource.items()),
            *(["  arithmetic: not counted, topology gives no peak"] if rates.flops is None else []),
        ]
    )
