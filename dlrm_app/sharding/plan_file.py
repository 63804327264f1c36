"""A sharding plan as a file that people read and compare: plan.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams

from dlrm_app.config.schema import one_of
from dlrm_app.config.sharding import KERNELS, SHARDING_TYPES
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.files import write_text, yaml_text
from dlrm_app.records import from_json
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.constraints import by_cause
from dlrm_app.sharding.cost import Option, Workload, estimate_options
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
    file = _read(path)
    entries, assignment = file.tables, dict[str, Placed]()
    problems = _rank_problems(file, cluster)
    if not problems:
        for problem, names in (
            (
                "it has entries for tables that are not here",
                [name for name in entries if name not in work.tables],
            ),
            ("it has no entry for", [name for name in work.tables if name not in entries]),
        ):
            hint = "plan these tables, with dlrm-plan output=FOLDER, or leave sharding.plan out"
            problems += [f"{problem}: {listed(names, 5)}; {hint}"] if names else []
        problems += by_cause((name, _entry_faults(entry, cluster)) for name, entry in entries.items())
    if not problems:
        assignment, faults = _assign(entries, work, cluster)
        problems = by_cause(faults)
    refuse_if([f"sharding.plan={path}: {problem}" for problem in first_lines(problems, 12)])
    return assignment


def _read(path: Path) -> _PlanFile:
    try:
        return from_json(_PlanFile, yaml.safe_load(yaml_text(path)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0].lstrip(".")
        raise ConfigError(
            [
                f"sharding.plan={path} cannot be read: {reason}; name a plan.yaml that dlrm-plan or dlrm-train wrote"
            ]
        ) from error


def _rank_problems(file: _PlanFile, cluster: Cluster) -> list[str]:
    nodes, width = file.nodes, file.devices_per_node
    if nodes * width != cluster.num_ranks:
        return [
            f"it is made for {nodes} × {width} = {nodes * width} ranks, here are {cluster.num_ranks}: "
            "start as many, or plan again"
        ]
    shares_nodes = any(entry.sharding_type in ON_NODES for entry in file.tables.values())
    if width != cluster.devices_per_node and shares_nodes:
        return [
            f"it splits tables over the ranks of one node and is made for {width} ranks per node, here are "
            f"{cluster.devices_per_node}: start as many per node, or plan again"
        ]
    return []


def _entry_faults(entry: _Entry, cluster: Cluster) -> list[str]:
    """Errors of an entry by itself; whether its shards are those of the table is seen in ``_assign``."""
    kind, kernel, share = entry.sharding_type, entry.compute_kernel, entry.cache_load_factor
    faults = one_of("sharding_type", kind, SHARDING_TYPES) + one_of("compute_kernel", kernel, KERNELS)
    if "uvm" in kernel and cluster.device == "cpu":
        faults.append(f"the kernel {kernel} needs CUDA, these ranks compute on CPU")
    if share is not None and not 0 < share <= 1:
        faults.append(f"cache_load_factor must lie in (0, 1], got {share!r}")
    if faults or kind == "data_parallel":
        return faults
    shards = entry.shards
    if not shards or any(len(shard) != 5 or min(shard) < 0 for shard in shards):
        return ["shards must be a list of [row, column, rows, columns, rank], whole numbers of at least 0"]
    outside = [shard[4] for shard in shards if shard[4] >= cluster.num_ranks]
    if outside:
        faults.append(f"it lies on rank {min(outside)}, the last rank here is {cluster.num_ranks - 1}")
    if entry.ranks != [shard[4] for shard in shards]:
        faults.append("ranks must be the last numbers of its shards, in their order")
    return faults


def _assign(
    entries: Mapping[str, _Entry], work: Workload, cluster: Cluster
) -> tuple[dict[str, Placed], list[tuple[str, list[str]]]]:
    """The entries in terms of what torchrec makes of their sharding types, and table name → what is wrong."""
    constraints = work.constraints(cluster)
    planned = {name: _as_constraints(entries[name], constraints[name]) for name in work.tables}
    options = estimate_options(work, cluster, planned)
    faults: list[tuple[str, list[str]]] = []
    assignment = {}
    for name in work.tables:
        entry, option = entries[name], options[name][0]
        is_copied = option.sharding_type == "data_parallel"
        expected = np.hstack([option.offsets, option.sizes])
        given = expected if is_copied else np.array(entry.shards)[:, :4]
        extent, table = (given[:, :2] + given[:, 2:]).max(0), work.tables[name]
        if extent.tolist() != [table.rows, table.dim]:
            made_for = f"{extent[0]:,} × {extent[1]}"
            wrong = [f"it is made for {made_for}, the table has {table.rows:,} × {table.dim}: plan again"]
        elif not np.array_equal(expected, given):
            wrong = [
                f"{option.sharding_type} on these ranks cuts it into {expected[:2].tolist()}…, "
                f"not {given[:2].tolist()}…: plan again"
            ]
        elif name in work.dense_kernel and option.kernel != "dense":
            wrong = [f"its optimizer needs the kernel dense here, not {option.kernel}: plan again with it"]
        else:
            wrong = _rank_order_faults(option, entry.ranks, cluster)
        faults.append((name, wrong))
        ranks = range(cluster.num_ranks) if is_copied else entry.ranks
        assignment[name] = Placed(option, tuple(ranks))
    return assignment, faults


def _as_constraints(entry: _Entry, constraints: ParameterConstraints) -> ParameterConstraints:
    """Constraints that leave the planner nothing but the entry."""
    widths = {shard[3] for shard in entry.shards}
    cache = constraints.cache_params
    if entry.cache_load_factor is not None:
        cache = replace(cache or CacheParams(), load_factor=entry.cache_load_factor)
    return replace(
        constraints,
        sharding_types=[entry.sharding_type],
        compute_kernels=[entry.compute_kernel],
        min_partition=min(widths) if widths else constraints.min_partition,
        cache_params=cache,
    )


def _rank_order_faults(option: Option, ranks: list[int], cluster: Cluster) -> list[str]:
    """Types that tie their shards to certain ranks."""
    kind, width, got = option.sharding_type, cluster.devices_per_node, f"got ranks {ranks[:8]}"
    if kind == "row_wise" and ranks != list(range(cluster.num_ranks)):
        return [f"row_wise puts shard i on rank i, {got}"]
    if kind in ("table_row_wise", "grid_shard"):
        nodes = [ranks[start] // width for start in range(0, len(ranks), width)]
        if ranks != [node * width + place for node in nodes for place in range(width)]:
            return [f"{kind} needs all ranks of a node in order, {got}"]
    if kind == "table_column_wise" and len({rank // width for rank in ranks}) > 1:
        return [f"table_column_wise keeps to one node, {got}"]
    return []
