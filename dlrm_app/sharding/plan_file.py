"""The file of a sharding plan, plan.yaml, which people can read, compare and edit."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torchrec.distributed.types import CacheParams

from dlrm_app.config.sharding import KERNELS, SHARDING_TYPES
from dlrm_app.config.values import choice_problems
from dlrm_app.errors import ConfigError, DataError, Problem, first_problems, refuse_if
from dlrm_app.records import IF_SET, Format, Json, as_json
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.constraints import by_cause
from dlrm_app.sharding.cost import Workload, estimate_options
from dlrm_app.sharding.placement import ON_NODES, Assignment, Placed
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.text import listed


@dataclass(frozen=True)
class _Entry:
    """The sharding of a table; shards are [row, column, rows, columns, rank]."""

    sharding_type: str
    compute_kernel: str
    ranks: list[int]
    shards: list[list[int]]
    cache_load_factor: float | None = field(default=None, metadata=IF_SET)


@dataclass(frozen=True)
class _PlanFile:
    nodes: int
    devices_per_node: int
    tables: dict[str, _Entry]
    format: str = "dlrm-plan"  # people write plans by hand: both may be missing
    version: int = 1


_FORMAT = Format(
    _PlanFile,
    "name a plan.yaml that dlrm-plan or dlrm-train wrote",
    comment="# table: how it is split; shards are [row, column, rows, columns, rank]\n",
)


def plan_to_dict(plan: EstimatedPlan) -> Json:
    """The content of plan.yaml, without its format and version."""
    value: Json = as_json(_plan_file(plan))
    return {key: part for key, part in value.items() if key not in ("format", "version")}


def _plan_file(plan: EstimatedPlan) -> _PlanFile:
    tables = {}
    for name in plan.work.tables:
        option, ranks = plan.assignment[name].option, list(plan.assignment[name].ranks)
        is_copied = option.sharding_type == "data_parallel"
        shards = [] if is_copied else np.column_stack([option.offsets, option.sizes, ranks]).tolist()
        tables[name] = _Entry(option.sharding_type, option.kernel, ranks, shards, option.load_factor)
    return _PlanFile(plan.cluster.nodes, plan.cluster.devices_per_node, tables)


def write_plan(path: Path, plan: EstimatedPlan) -> None:
    """Writes ``plan`` to ``path``; the file is complete or absent."""
    _FORMAT.write(path, _plan_file(plan))


def load_plan(path: Path, work: Workload, cluster: Cluster) -> Assignment:
    """Reads the plan in ``path`` for these tables on this cluster.

    Raises ConfigError with all problems: other ranks, other tables, an unknown kernel, rows or columns that no shard
    or several shards hold.
    """
    try:
        file = _FORMAT.read(path)
    except DataError as error:
        raise ConfigError(*(problem.within("sharding.plan", "=") for problem in error.problems)) from error
    except OSError as error:
        rule = f"cannot be read ({error.strerror})"
        raise ConfigError(Problem(f"sharding.plan={path}", rule, _FORMAT.cure)) from error
    assignment: Assignment = {}
    problems = _mismatches(file, work, cluster)
    problems = problems or by_cause((name, _faults(entry, cluster)) for name, entry in file.tables.items())
    if not problems:
        assignment = _assign(file.tables, work, cluster)
        problems = by_cause(
            (name, _misplacements(file.tables[name], name, assignment, work, cluster)) for name in assignment
        )
    refuse_if([problem.within(f"sharding.plan={path}") for problem in first_problems(problems, 12)])
    return assignment


def _mismatches(file: _PlanFile, work: Workload, cluster: Cluster) -> list[Problem]:
    made_for = f"{file.nodes} × {file.devices_per_node} ranks"
    here = f"{cluster.nodes} × {cluster.devices_per_node} ranks"
    needs_nodes = any(entry.sharding_type in ON_NODES for entry in file.tables.values())
    if file.nodes * file.devices_per_node != cluster.num_ranks or (needs_nodes and made_for != here):
        return [
            Problem("", f"is made for {made_for}, this cluster has {here}", "start as many, or plan again")
        ]
    unknown = [name for name in file.tables if name not in work.tables]
    missing = [name for name in work.tables if name not in file.tables]
    hint = "plan these tables, with dlrm-plan output=FOLDER, or leave sharding.plan out"
    said = {"has entries for tables that are not here": unknown, "has no entry for": missing}
    return [Problem("", f"{rule}: {listed(names, 5)}", hint) for rule, names in said.items() if names]


def _faults(entry: _Entry, cluster: Cluster) -> list[Problem]:
    """Problems of one entry, without looking at its table."""
    kind, kernel, share = entry.sharding_type, entry.compute_kernel, entry.cache_load_factor
    faults = choice_problems("sharding_type", kind, SHARDING_TYPES) + choice_problems(
        "compute_kernel", kernel, KERNELS
    )
    if "uvm" in kernel and cluster.device == "cpu":
        faults.append(Problem(f"compute_kernel {kernel}", "needs CUDA, these ranks compute on CPU"))
    if share is not None and not 0 < share <= 1:
        faults.append(Problem("cache_load_factor", "must lie in (0, 1]", value=share))
    if faults or kind == "data_parallel":
        return faults
    is_whole = bool(entry.shards) and all(len(shard) == 5 and min(shard) >= 0 for shard in entry.shards)
    ranks = [shard[-1] for shard in entry.shards if shard]
    if not is_whole or ranks != entry.ranks or max(ranks) >= cluster.num_ranks:
        rule = (
            "must be a list of [row, column, rows, columns, rank], whole numbers of at least 0, and "
            f"ranks their last numbers, at most {cluster.num_ranks - 1}"
        )
        return [Problem("shards", rule)]
    return []


def _assign(entries: Mapping[str, _Entry], work: Workload, cluster: Cluster) -> dict[str, Placed]:
    """The entries as options: how torchrec cuts tables by the entries' sharding types."""
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
) -> list[Problem]:
    """Problems: shards that torchrec would cut or place in another way, or a kernel that cannot train the table."""
    option, table, width = assignment[name].option, work.tables[name], cluster.devices_per_node
    kind, ranks = option.sharding_type, entry.ranks
    if name in work.dense_kernel and option.kernel != "dense":
        cure = "plan again with it"
        return [Problem("compute_kernel", f"must be dense here for its optimizer, not {option.kernel}", cure)]
    if kind == "data_parallel":
        return []
    expected, given = np.hstack([option.offsets, option.sizes]), np.array(entry.shards)[:, :4]
    if not np.array_equal(expected, given):
        rule = (
            f"are {given[:2].tolist()}…, but {kind} cuts its {table.rows:,} × {table.dim} weights into "
            f"{expected[:2].tolist()}… on these ranks"
        )
        return [Problem("shards", rule, "plan again")]
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
        []
        if is_right.get(kind, True)
        else [Problem("shards", f"are on ranks {ranks[:8]}…, where {kind} does not put them", "plan again")]
    )
