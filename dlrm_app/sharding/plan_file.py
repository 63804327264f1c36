"""A sharding plan as a file that people read and compare: plan.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torchrec.distributed.types import CacheParams

from dlrm_app.config.schema import one_of
from dlrm_app.config.sharding import KERNELS, SHARDING_TYPES
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.files import write_text, yaml_text
from dlrm_app.records import from_json
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.constraints import by_cause
from dlrm_app.sharding.cost import Workload, estimate_options
from dlrm_app.sharding.placement import ON_NODES, Assignment, Placed
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.text import first_lines, listed


@dataclass(frozen=True)
class _Entry:
    """How a table is sharded; shards as [row, column, rows, columns, rank]."""

    sharding_type: str
    compute_kernel: str
    ranks: list[int]
    shards: list[list[int]]
    cache_load_factor: float | None = None


@dataclass(frozen=True)
class _PlanFile:
    nodes: int
    devices_per_node: int
    tables: dict[str, _Entry]


def plan_to_dict(plan: EstimatedPlan) -> dict[str, Any]:
    """Table name → how and where it is sharded; shards as [row, column, rows, columns, rank]."""
    tables = {}
    for name in plan.work.tables:
        option, ranks = plan.assignment[name].option, list(plan.assignment[name].ranks)
        is_copied = option.sharding_type == "data_parallel"
        shards = [] if is_copied else np.column_stack([option.offsets, option.sizes, ranks]).tolist()
        cached = {} if option.load_factor is None else {"cache_load_factor": option.load_factor}
        how = {"sharding_type": option.sharding_type, "compute_kernel": option.kernel}
        tables[name] = {**how, "ranks": ranks, "shards": shards, **cached}
    return {"nodes": plan.cluster.nodes, "devices_per_node": plan.cluster.devices_per_node, "tables": tables}


def write_plan(path: Path, plan: EstimatedPlan) -> None:
    """Writes ``plan`` to ``path``, whole or not at all."""
    text = yaml.safe_dump(plan_to_dict(plan), sort_keys=False, default_flow_style=None, width=120)
    write_text(path, "# table: how it is split; shards are [row, column, rows, columns, rank]\n" + text)


def load_plan(path: Path, work: Workload, cluster: Cluster) -> Assignment:
    """The plan of ``path``, for these tables on this cluster.

    Raises ConfigError with the reasons why it is not one: other ranks, or else other tables, an unknown kernel, rows or
    columns that lie nowhere or twice.
    """
    try:
        file = from_json(_PlanFile, yaml.safe_load(yaml_text(path)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0].lstrip(".")
        cure = "name a plan.yaml that dlrm-plan or dlrm-train wrote"
        raise ConfigError([f"sharding.plan={path} cannot be read: {reason}; {cure}"]) from error
    assignment: Assignment = {}
    problems = _mismatches(file, work, cluster)
    problems = problems or by_cause((name, _faults(entry, cluster)) for name, entry in file.tables.items())
    if not problems:
        assignment = _assign(file.tables, work, cluster)
        problems = by_cause(
            (name, _misplacements(file.tables[name], name, assignment, work, cluster)) for name in assignment
        )
    refuse_if([f"sharding.plan={path}: {problem}" for problem in first_lines(problems, 12)])
    return assignment


def _mismatches(file: _PlanFile, work: Workload, cluster: Cluster) -> list[str]:
    """Other ranks or other tables than those that are here."""
    made_for = f"{file.nodes} × {file.devices_per_node} ranks"
    here = f"{cluster.nodes} × {cluster.devices_per_node} ranks"
    needs_nodes = any(entry.sharding_type in ON_NODES for entry in file.tables.values())
    if file.nodes * file.devices_per_node != cluster.num_ranks or (needs_nodes and made_for != here):
        return [f"it is made for {made_for}, here are {here}: start as many, or plan again"]
    unknown = [name for name in file.tables if name not in work.tables]
    missing = [name for name in work.tables if name not in file.tables]
    hint = "plan these tables, with dlrm-plan output=FOLDER, or leave sharding.plan out"
    said = {"it has entries for tables that are not here": unknown, "it has no entry for": missing}
    return [f"{problem}: {listed(names, 5)}; {hint}" for problem, names in said.items() if names]


def _faults(entry: _Entry, cluster: Cluster) -> list[str]:
    """Errors of an entry by itself."""
    kind, kernel, share = entry.sharding_type, entry.compute_kernel, entry.cache_load_factor
    faults = one_of("sharding_type", kind, SHARDING_TYPES) + one_of("compute_kernel", kernel, KERNELS)
    if "uvm" in kernel and cluster.device == "cpu":
        faults.append(f"the kernel {kernel} needs CUDA, these ranks compute on CPU")
    if share is not None and not 0 < share <= 1:
        faults.append(f"cache_load_factor must lie in (0, 1], got {share!r}")
    if faults or kind == "data_parallel":
        return faults
    is_whole = bool(entry.shards) and all(len(shard) == 5 and min(shard) >= 0 for shard in entry.shards)
    ranks = [shard[-1] for shard in entry.shards if shard]
    if not is_whole or ranks != entry.ranks or max(ranks) >= cluster.num_ranks:
        return [
            "shards must be a list of [row, column, rows, columns, rank], whole numbers of at least 0, and ranks their last "
            f"numbers, at most {cluster.num_ranks - 1}"
        ]
    return []


def _assign(entries: Mapping[str, _Entry], work: Workload, cluster: Cluster) -> dict[str, Placed]:
    """The entries in terms of what torchrec makes of their sharding types."""
    planned = {}
    for name, allowed in work.constraints(cluster).items():
        entry, cache = entries[name], allowed.cache_params
        if entry.cache_load_factor is not None:
            cache = replace(cache or CacheParams(), load_factor=entry.cache_load_factor)
        planned[name] = replace(
            allowed,
            sharding_types=[entry.sharding_type],
            compute_kernels=[entry.compute_kernel],
            min_partition=min((shard[3] for shard in entry.shards), default=allowed.min_partition),
            cache_params=cache,
        )
    options, assignment = estimate_options(work, cluster, planned), {}
    for name in work.tables:
        (option,) = options[name]
        is_copied = option.sharding_type == "data_parallel"
        assignment[name] = Placed(
            option, tuple(range(cluster.num_ranks) if is_copied else entries[name].ranks)
        )
    return assignment


def _misplacements(
    entry: _Entry, name: str, assignment: Assignment, work: Workload, cluster: Cluster
) -> list[str]:
    """Shards of another table's size, or that torchrec would not cut or place like this; a kernel that does not train it."""
    option, table, width = assignment[name].option, work.tables[name], cluster.devices_per_node
    kind, ranks = option.sharding_type, entry.ranks
    if name in work.dense_kernel and option.kernel != "dense":
        return [f"its optimizer needs the kernel dense here, not {option.kernel}: plan again with it"]
    if kind == "data_parallel":
        return []
    expected, given = np.hstack([option.offsets, option.sizes]), np.array(entry.shards)[:, :4]
    if not np.array_equal(expected, given):
        return [
            f"{kind} cuts its {table.rows:,} × {table.dim} weights into {expected[:2].tolist()}… on these ranks, not "
            f"{given[:2].tolist()}…: plan again"
        ]
    nodes = [rank // width for rank in ranks]
    is_right = {
        "row_wise": ranks == [*range(cluster.num_ranks)],
        "table_column_wise": len({*nodes}) == 1,
        **dict.fromkeys(
            ("table_row_wise", "grid_shard"),
            ranks == [node * width + place for node in nodes[::width] for place in range(width)],
        ),
    }
    return (
        [] if is_right.get(kind, True) else [f"{kind} does not put shards on ranks {ranks[:8]}…: plan again"]
    )
