"""dlrm-plan: places the tables of a model on a cluster that need not be there."""

from pathlib import Path

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.dataset.shard_files import with_pooling_factors
from dlrm_app.distributed.runtime import quiet_libraries
from dlrm_app.files import explained_disk_errors
from dlrm_app.planning.estimates import estimate_text
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.plan import EstimatedPlan, plan_text, to_plan
from dlrm_app.sharding.plan_file import write_plan
from dlrm_app.sharding.planner import find_assignment
from dlrm_app.sharding.suggestions import smallest_cluster
from dlrm_app.text import next_line, setting, typed_settings
from dlrm_app.training.validation import batch_problems, check_plan, plan_workload


def plan_cluster(config: PlanConfig) -> EstimatedPlan:
    """Plans, prints the plan, and writes plan.yaml if ``output`` names a folder.

    Needs neither GPUs nor process groups. Raises DlrmError if the tables do not fit, with what would make them.
    """
    quiet_libraries()
    cluster, manifest, tables = check_plan(config)
    if manifest is not None:
        tables = with_pooling_factors(tables, manifest)
    work = plan_workload(config, tables, cluster.device)
    assignment, options = find_assignment(work, cluster)
    plan = to_plan(assignment, options, dict.fromkeys(work.tables, ""), work, cluster)
    print(plan_text(plan))
    num_dense = config.num_dense if manifest is None else len(manifest.dense)
    print(estimate_text(config, plan, tables, num_dense))
    # a plan from a file is for its own ranks alone
    if config.smallest and config.sharding.plan is None and (smallest := smallest_cluster(work, cluster)):
        print(f"the smallest cluster of these devices that the tables fit on: {smallest}")
    if config.output is not None:
        folder = Path(config.output)
        with explained_disk_errors(folder, "then plan again"):
            folder.mkdir(parents=True, exist_ok=True)
            write_plan(folder / "plan.yaml", plan)
        print(f"wrote {folder / 'plan.yaml'}")
    _print_next(config, cluster)
    return plan


def train_command(config: PlanConfig, cluster: Cluster) -> str:
    """The command that trains with the plan in ``output`` on its cluster."""
    meet = "--standalone"
    if cluster.nodes > 1:
        meet = f"--nnodes {cluster.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    settings = [each for each in typed_settings("output", "smallest", "topology") if "topology." not in each]
    if config.data.path is None:
        settings.append("data.path=DATASET")
    settings.append(setting("sharding.plan", Path(config.output or "") / "plan.yaml"))
    return " ".join(
        [f"torchrun {meet} --nproc-per-node {cluster.devices_per_node} -m dlrm_app.cli train", *settings]
    )


def _print_next(config: PlanConfig, cluster: Cluster) -> None:
    if config.output is None:
        print("output=… keeps the plan as plan.yaml, which dlrm-train takes")
        print(next_line("dlrm-plan", {}, *typed_settings("output"), "output=plan"))
        return
    print(f"next: {train_command(config, cluster)}")
    if cluster.nodes > 1:
        print("      on each machine, with the first one's name for HOST")
    # no reason not to plan: rows and ranks do not change the plan
    for problem in batch_problems(config, cluster.num_ranks, rows=config.trainer.global_batch_size):
        print(f"      dlrm-train will want more: {problem}")
