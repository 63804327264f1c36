"""Merlin's six synthetic models planned by dlrm-plan's planner, and by torchrec's where that ends within a limit.

    python benchmarks/planner.py [--limit SECONDS]

Both are judged by the same estimates. CPU time counts, so that other work on the machine does not.
"""

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import replace

import yaml
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import Adagrad

from dlrm_app.cli.process import quiet_libraries
from dlrm_app.config.compose import compose_config
from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.train import TablesConfig
from dlrm_app.config.words import WordReader
from dlrm_app.sharding.cluster import Cluster, described_cluster
from dlrm_app.sharding.cost import Workload, estimate_options
from dlrm_app.sharding.placement import Assignment, Placed, rank_loads
from dlrm_app.sharding.planner import make_workload
from dlrm_app.sharding.search import search, smallest_cluster
from dlrm_app.sharding.sharder import AnyShardingSharder
from dlrm_app.tables.bags import meta_bags
from dlrm_app.tables.specs import resolve_tables

CASES = (
    ("tiny", 8),
    ("small", 8),
    ("medium", 16),
    ("large", 128),
    ("jumbo", 128),
    ("colossal", 1024),
)
BATCH = 65_536


def prepare(model: str, ranks: int) -> tuple[Workload, Cluster]:
    overrides = [f"merlin={model}", f"trainer.global_batch_size={BATCH}"]
    config = compose_config(
        "plan",
        PlanConfig,
        WordReader(PlanConfig, "plan").read([*overrides, f"topology.nodes={ranks // 8}"]).settings,
    )
    tables = resolve_tables(
        TablesConfig(**yaml.safe_load((conf_dir() / f"merlin/{model}.yaml").read_text())["tables"]), None
    )
    work = make_workload(tables, config.optimizer.sparse, config.sharding, BATCH, "cuda")
    return work, described_cluster(config.topology)


def judge(assignment: Assignment, cluster: Cluster, seconds: float) -> str:
    """Cells of a plan: CPU seconds it took, and milliseconds of its slowest rank by the estimates."""
    slowest = rank_loads(assignment, cluster.num_ranks).time.max()
    return f"{seconds:.1f} s | {slowest:.2f} ms"


def plan_ours(work: Workload, cluster: Cluster) -> str:
    started = time.process_time()
    assignment = search(estimate_options(work, cluster), cluster)
    seconds = time.process_time() - started
    assert assignment is not None
    return judge(assignment, cluster, seconds)


def plan_theirs(work: Workload, cluster: Cluster) -> str:
    """torchrec's EmbeddingShardingPlanner with the same types, topology and batch."""
    model = nn.Module()
    model.bags = meta_bags(list(work.tables.values()))
    for _, parameter in model.named_parameters():
        apply_optimizer_in_backward(Adagrad, [parameter], {"lr": 0.1})
    planner = EmbeddingShardingPlanner(
        topology=cluster.to_torchrec(),
        batch_size=BATCH // cluster.num_ranks,
        constraints=work.constraints(cluster),
        storage_reservation=FixedPercentageStorageReservation(0.0),  # the topology is what is left
    )
    started = time.process_time()
    plan = planner.plan(model, [AnyShardingSharder()])
    seconds = time.process_time() - started
    options = estimate_options(work, cluster)
    assignment = {
        name: Placed(option, tuple(placed.ranks))
        for name, placed in plan.plan["bags"].items()
        for option in options[name]
        if (option.sharding_type, option.kernel) == (placed.sharding_type, placed.compute_kernel)
    }
    return judge(assignment, cluster, seconds)


def plan_theirs_within(model: str, ranks: int, limit: int) -> str:
    """Its cells of the table, from a process of its own that is stopped after ``limit`` seconds of CPU time."""
    command = [sys.executable, __file__, "--only-torchrec", model, str(ranks), "--limit", str(limit)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode < 0:
        return f"no answer in {limit} s | –"
    if done.returncode > 0:
        return f"{done.stderr.strip().splitlines()[-1][:80]} | –"
    return done.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--limit", type=int, default=600, help="CPU seconds for torchrec's planner; 0: ours alone"
    )
    parser.add_argument("--only-torchrec", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    quiet_libraries()
    if arguments.only_torchrec:
        model, ranks = arguments.only_torchrec
        resource.setrlimit(resource.RLIMIT_CPU, (arguments.limit, arguments.limit))
        print(plan_theirs(*prepare(model, int(ranks))))
        return
    print(
        "| model | A100-80GB | planner | CPU time | slowest rank | smallest cluster |\n|---|---|---|---|---|---|"
    )
    for model, ranks in CASES:
        work, cluster = prepare(model, ranks)
        smallest = smallest_cluster(work, replace(cluster, nodes=1))
        size = "–" if smallest is None else f"{smallest.num_ranks}"
        print(f"| {model} | {ranks} | ours | {plan_ours(work, cluster)} | {size} |", flush=True)
        if arguments.limit:
            print(f"| | | torchrec | {plan_theirs_within(model, ranks, arguments.limit)} | |", flush=True)


if __name__ == "__main__":
    main()
