"""dlrm-plan: where the tables of a model would lie on a cluster that need not be there."""

import time
from pathlib import Path

import torch
from torch import nn

from dlrm_app.config.plan import PlanConfig
from dlrm_app.data.batch_order import check_lanes
from dlrm_app.data.manifest import read_manifest
from dlrm_app.data.pooling_factors import with_pooling_factors
from dlrm_app.distributed.runtime import quiet_libraries
from dlrm_app.errors import DlrmError, refuse_if
from dlrm_app.files import write_text
from dlrm_app.model.build import model_problems
from dlrm_app.sharding.cluster import Cluster, described_cluster
from dlrm_app.sharding.communication import collective_problems
from dlrm_app.sharding.constraints import sharding_problems
from dlrm_app.sharding.cost import Workload
from dlrm_app.sharding.kernels import table_problems
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan, to_plan
from dlrm_app.sharding.plan.plan_file import write_plan
from dlrm_app.sharding.plan.plan_page import plan_page
from dlrm_app.sharding.plan.plan_table import plan_text
from dlrm_app.sharding.planner.planner import find_assignment, make_workload
from dlrm_app.sharding.suggestions import smallest_cluster
from dlrm_app.tables.bag_configs import meta_bags
from dlrm_app.tables.sparse_optimizers import attach_fused_optimizers
from dlrm_app.tables.specs import Table, resolve_tables
from dlrm_app.training.pipelines import pipeline_problems, plan_problems


def plan_cluster(config: PlanConfig) -> EstimatedPlan:
    """Plans, prints the plan, and writes plan.yaml and plan.html if ``output`` names a folder.

    Needs neither GPUs nor process groups. Raises DlrmError if the tables do not fit, with what would make them.
    """
    quiet_libraries()
    cluster = described_cluster(config.topology)
    tables = _open_tables(config, cluster)
    work = _workload(config, tables, cluster)
    started = time.perf_counter()
    assignment, options = find_assignment(work, cluster, lambda: _on_paper(config, tables))
    seconds = time.perf_counter() - started
    plan = to_plan(assignment, options, dict.fromkeys(work.tables, ""), work, cluster)
    refuse_if(plan_problems(config.trainer.pipeline, plan))
    print(plan_text(plan))
    if options:
        num_classes = len(set(map(id, options.values())))
        print(
            f"found in {seconds:.1f} s: {len(tables):,} table{'s' * (len(tables) > 1)}, {num_classes:,} class{'es' * (num_classes > 1)}"
        )
    if config.smallest:
        _print_smallest(work, cluster)
    if config.output is not None:
        _write(Path(config.output), plan)
    _print_next(config, cluster)
    return plan


def _open_tables(config: PlanConfig, cluster: Cluster) -> list[Table]:
    """The tables, checked as dlrm-train would. Raises ConfigError with all problems."""
    if config.data.path is None:
        tables = resolve_tables(config.tables, None)
    else:
        manifest = read_manifest(Path(config.data.path))
        feature_rows = {column.name: column.num_embeddings for column in manifest.sparse}
        tables = with_pooling_factors(resolve_tables(config.tables, feature_rows), manifest)
    problems = model_problems(config.model)
    problems += table_problems(tables, config.optimizer.sparse, config.sharding, cluster.device)
    problems += sharding_problems(tables, config.sharding, cluster.device)
    problems += pipeline_problems(config.trainer.pipeline, config.evaluation, torch.device(cluster.device))
    refuse_if(problems)
    return tables


def _on_paper(config: PlanConfig, tables: list[Table]) -> nn.Module:
    """The tables as torchrec's planner reads them, without weights."""
    model = nn.Module()
    model.sparse = meta_bags(tables)
    attach_fused_optimizers(model, tables, config.optimizer.sparse)
    return model


def _workload(config: PlanConfig, tables: list[Table], cluster: Cluster) -> Workload:
    batch_size = (
        config.trainer.global_batch_size * config.model.ensemble_size
    )  # each model reads rows of its own
    return make_workload(tables, config.optimizer.sparse, config.sharding, batch_size, cluster.device)


def _print_smallest(work: Workload, cluster: Cluster) -> None:
    if work.sharding.plan is not None:
        return  # a plan from a file is for its own ranks alone
    smallest = smallest_cluster(work, cluster)
    if smallest is not None:
        print(f"the smallest cluster of these devices that the tables fit on: {smallest}")


def _write(folder: Path, plan: EstimatedPlan) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_plan(folder / "plan.yaml", plan)
        write_text(folder / "plan.html", plan_page(plan, folder.absolute().name))
    except OSError as error:
        raise DlrmError(f"output={folder} cannot be written: {error.strerror}") from error
    print(f"wrote {folder / 'plan.yaml'} and {folder / 'plan.html'}")


def _print_next(config: PlanConfig, cluster: Cluster) -> None:
    if config.output is None:
        print(
            "next: add output=FOLDER for plan.yaml, which dlrm-train takes, and a chart of every rank's load"
        )
        return
    print(
        f"next: torchrun --nnodes {cluster.nodes} --nproc-per-node {cluster.devices_per_node} … dlrm-train, with the "
        f"same tables and optimizer, data.path=DIR and sharding.plan={Path(config.output) / 'plan.yaml'}"
    )
    for problem in _batch_problems(config, cluster):
        print(f"      dlrm-train will want more: {problem}")


def _batch_problems(config: PlanConfig, cluster: Cluster) -> list[str]:
    """What dlrm-train would refuse of rows and ranks; no reason not to plan, for it does not change the plan."""
    batch_size, num_ranks = config.trainer.global_batch_size, cluster.num_ranks
    rows_per_rank = batch_size * config.model.ensemble_size // num_ranks
    return [
        *check_lanes(batch_size, config.data.lanes, num_ranks, rows=batch_size),
        *collective_problems(config.sharding.collectives, rows_per_rank, config.evaluation.batch_size),
    ]
