"""Sharding plans: for DistributedModelParallel with estimated costs, as text, and as a file.

The text has the load of each rank and the sharding of each kind of table. The file, plan.yaml, can be read, compared
and edited by people.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from dlrm_app.config.sharding import KERNELS, SHARDING_TYPES
from dlrm_app.config.values import one_of
from dlrm_app.errors import ConfigError, DataError, Problem, first_problems, refuse_if
from dlrm_app.records import IF_SET, Format, as_json
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.constraints import by_cause
from dlrm_app.sharding.cost import KINDS, Workload, estimate_options
from dlrm_app.sharding.placement import ON_NODES, Assignment, Loads, Placed, imbalance, rank_loads
from dlrm_app.table import Column, Columns, Rows, share, text_table
from dlrm_app.tables.bags import torch_name
from dlrm_app.tables.specs import RENAMED, Table
from dlrm_app.text import listed, memory_text, percent

logger = logging.getLogger(__name__)


@dataclass
class EstimatedPlan(ShardingPlan):
    """A ShardingPlan with its cluster, its assignment and the estimated loads of its ranks."""

    cluster: Cluster
    assignment: Assignment
    work: Workload

    @property
    def loads(self) -> Loads:
        """Estimated loads by rank."""
        return rank_loads(self.assignment, self.cluster.num_ranks)


def module_paths(model: nn.Module) -> dict[str, str]:
    """Table name → the path of torchrec's collection in ``model`` that holds it."""
    paths = {}
    for path, module in model.named_modules():
        held: list[Any] = []
        if isinstance(module, EmbeddingBagCollection):
            held = module.embedding_bag_configs()
        elif isinstance(module, EmbeddingCollection):
            held = module.embedding_configs()
        paths.update({table.name.removesuffix(RENAMED): path for table in held})
    return paths


def to_plan(
    assignment: Assignment, paths: Mapping[str, str], work: Workload, cluster: Cluster
) -> EstimatedPlan:
    """Turns ``assignment`` into torchrec's plan, with the caches from the tables' constraints."""
    constraints = work.constraints(cluster)
    plan: dict[str, EmbeddingModuleShardingPlan] = {}
    for name, path in paths.items():
        module_plan = plan.setdefault(path, EmbeddingModuleShardingPlan())
        module_plan[torch_name(name)] = _parameter(assignment[name], constraints[name], cluster)
    return EstimatedPlan(plan, cluster, assignment, work)


def _parameter(placed: Placed, constraints: ParameterConstraints, cluster: Cluster) -> ParameterSharding:
    option = placed.option
    shards = [
        ShardMetadata(
            shard_sizes=[int(n) for n in size],
            shard_offsets=[int(n) for n in offset],
            placement=placement(cluster.device, rank, cluster.devices_per_node),
        )
        for size, offset, rank in zip(option.sizes, option.offsets, placed.ranks, strict=True)
    ]
    cache = constraints.cache_params
    if option.load_factor is not None:
        cache = replace(cache or CacheParams(), load_factor=option.load_factor)
    return ParameterSharding(
        sharding_spec=None if option.sharding_type == "data_parallel" else EnumerableShardingSpec(shards),
        sharding_type=option.sharding_type,
        compute_kernel=option.kernel,
        ranks=list(placed.ranks),
        cache_params=cache,
    )


MAX_TABLE_ROWS = 30
"""Lines of the printed table."""
MAX_RANKS = 16
"""The most ranks that are listed one by one; for more, only the smallest, mean and largest loads are shown."""
TABLE_COLUMNS: Columns = [
    "tables",
    "rows",
    "dim",
    Column("sharding", is_words=True),
    "shards",
    "weights",
]


def log_plan(plan: EstimatedPlan) -> None:
    """Logs a summary of ``plan``; one line if there is one rank."""
    if plan.cluster.num_ranks > 1:
        logger.info(plan_text(plan))
        return
    held = float(plan.loads.device[0])
    used = percent(held / plan.cluster.usable)
    logger.info(
        "tables and their optimizer take %s, %s of this rank's memory, estimated", memory_text(held), used
    )


def plan_text(plan: EstimatedPlan) -> str:
    """The plan as text: the loads of ranks, the balance (largest over mean), and the sharding of tables."""
    loads, num_ranks, rows = plan.loads, plan.cluster.num_ranks, _table_rows(plan)
    lines = [
        f"sharding plan for {plan.cluster}, estimated:",
        indent(_rank_table(loads, plan.cluster), "  "),
        f"balance (largest/mean): time {imbalance(loads.time):.3f}, memory {imbalance(loads.device):.3f}; "
        f"{loads.time.max():.3g} ms a step on the slowest rank",
    ]
    if empty := num_ranks - len({rank for placed in plan.assignment.values() for rank in placed.ranks}):
        lines.append(
            f"{empty:,} of {num_ranks:,} ranks hold no table: use fewer, or set sharding.types to row_wise"
        )
    lines.append(indent(text_table(TABLE_COLUMNS, rows[:MAX_TABLE_ROWS]), "  "))
    if len(rows) > MAX_TABLE_ROWS:
        lines.append(f"  … and {len(rows) - MAX_TABLE_ROWS} lines more: plan.yaml has every table")
    return "\n".join(lines)


def _rank_table(loads: Loads, cluster: Cluster) -> str:
    """A table of memory by kind and time for every rank, or the smallest, mean and largest values if there are many."""
    parts = [(kind, part) for kind, part in zip(KINDS, loads.memory.T, strict=True) if part.any()]
    parts += [("in all", loads.device), *([("in the host", loads.host)] if loads.host.any() else [])]
    # [columns, ranks]
    values = np.stack([*(part for _, part in parts), loads.device / cluster.usable, loads.time])
    shown = {str(rank): column for rank, column in enumerate(values.T)}
    if cluster.num_ranks > MAX_RANKS:
        shown = {"smallest": values.min(1), "mean": values.mean(1), "largest": values.max(1)}
    headings = ["rank", *(name for name, _ in parts), "of its memory", "ms a step"]
    rows: Rows = [
        [name, *map(memory_text, of_rank[:-2]), share(of_rank[-2]), f"{of_rank[-1]:.3g}"]
        for name, of_rank in shown.items()
    ]
    return text_table(headings, rows)


def _table_rows(plan: EstimatedPlan) -> list[list[str]]:
    """A row of TABLE_COLUMNS for each set of tables with one shape and one sharding."""
    alike: dict[tuple[object, ...], list[Table]] = defaultdict(list)
    for name, table in plan.work.tables.items():
        placed = plan.assignment[name]
        shape = (table.rows, table.dim, table.data_type, len(table.features))
        alike[(*shape, placed.option.label, len(placed.ranks))].append(table)
    return [
        [
            _label(tables),
            f"{rows:,}",
            str(dim),
            str(sharding),
            str(num_shards),
            memory_text(sum(t.num_bytes for t in tables)),
        ]
        for (rows, dim, _, _, sharding, num_shards), tables in alike.items()
    ]


def _label(tables: Sequence[Table]) -> str:
    """The name of one table, or the common stem of several and their number."""
    first = tables[0].name
    if len(tables) == 1:
        return first
    stems = {re.sub(r"\d+$", "", table.name) for table in tables}
    stem = f"{stems.pop()}*" if len(stems) == 1 else f"{first}, …"
    return f"{stem} ({len(tables)})"


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


def plan_to_dict(plan: EstimatedPlan) -> dict[str, Any]:
    """The content of plan.yaml, without its format and version."""
    value: dict[str, Any] = as_json(_plan_file(plan))
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
    """Problems: the file is for other ranks or other tables."""
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
    faults = one_of("sharding_type", kind, SHARDING_TYPES) + one_of("compute_kernel", kernel, KERNELS)
    if "uvm" in kernel and cluster.device == "cpu":
        faults.append(Problem(f"compute_kernel {kernel}", "needs CUDA, these ranks compute on CPU"))
    if share is not None and not 0 < share <= 1:
        faults.append(Problem("cache_load_factor", "must lie in (0, 1]", value=share))
    if faults or kind == "data_parallel":
        return faults
    is_whole = bool(entry.shards) and all(len(shard) == 5 and min(shard) >= 0 for shard in entry.shards)
    ranks = [shard[-1] for shard in entry.shards if shard]
    if not is_whole or ranks != entry.ranks or max(ranks) >= cluster.num_ranks:
        return [
            Problem(
                "shards",
                "must be a list of [row, column, rows, columns, rank], whole numbers of at least 0, and "
                f"ranks their last numbers, at most {cluster.num_ranks - 1}",
            )
        ]
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
        return [
            Problem(
                "compute_kernel",
                f"must be dense here for its optimizer, not {option.kernel}",
                "plan again with it",
            )
        ]
    if kind == "data_parallel":
        return []
    expected, given = np.hstack([option.offsets, option.sizes]), np.array(entry.shards)[:, :4]
    if not np.array_equal(expected, given):
        return [
            Problem(
                "shards",
                f"are {given[:2].tolist()}…, but {kind} cuts its {table.rows:,} × {table.dim} weights into "
                f"{expected[:2].tolist()}… on these ranks",
                "plan again",
            )
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
        []
        if is_right.get(kind, True)
        else [Problem("shards", f"are on ranks {ranks[:8]}…, where {kind} does not put them", "plan again")]
    )
