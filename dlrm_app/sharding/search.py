"""Searches for a plan: chooses a sharding option for each table, then places its shards; gives advice if none fits.

A table takes the cheapest option whose shards are all below a limit of time and of memory: low limits split tables,
high ones keep them whole. A few dozen pairs of limits are tried, the best placements are improved, and the best plan is
kept. The result depends only on the tables and the cluster, not on their order.
If tables do not fit, the advice gives the needed and the available memory, and the settings that were tried and work.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.constraints import constraints_of, sharding_problems, table_names
from dlrm_app.sharding.cost import KINDS, Option, Options, Workload, estimate_options
from dlrm_app.sharding.placement import Assignment, Placement, improve, place_tables, rank_loads
from dlrm_app.tables.table import Table
from dlrm_app.text import memory_text

TIME_LEVELS = (np.inf, 4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.25, 0.1)
"""Limits of time, in units of a rank's time with the cheapest options spread evenly."""
MEMORY_LEVELS = (1.0, 0.5, 0.25, 0.1)
"""Limits of memory, as shares of the memory that tables may take on a rank."""
TIME_WEIGHTS = (1.0, 0.5, 0.0)
"""Weights of time in a placement; the rest is the weight of memory."""
NUM_IMPROVED = 6
"""Number of the best placements that are improved."""
Choices = Sequence[tuple[str, Option]]
"""An option for each table, by name."""


def search(options: Options, cluster: Cluster) -> Assignment | None:
    """The plan with the fastest slowest rank, ties broken by memory; None if no plan was found that fits."""
    placements = [
        placement for choices in _choices(options, cluster) for placement in _placements(choices, cluster)
    ]
    may_leave_devices = any(option.host.any() for of_table in options.values() for option in of_table)
    if not placements or may_leave_devices:
        placements += _frugal_placements(options, cluster)
    placements.sort(key=_cost)
    for placement in placements[:NUM_IMPROVED]:
        improve(placement)
    return min(placements[:NUM_IMPROVED], key=_cost).placed if placements else None


def fits(options: Options, cluster: Cluster) -> bool:
    """True if ``search`` would find a plan; faster than ``search``."""
    least = sum(min(float(option.device.sum()) for option in of_table) for of_table in options.values())
    if least > cluster.usable * cluster.num_ranks:
        return False
    return any(_has_placement(choices, cluster) for choices in _choices(options, cluster)) or bool(
        _frugal_placements(options, cluster)
    )


def _cost(placement: Placement) -> float:
    """Time plus a little for memory: a rank whose memory is full costs 5% more than its time."""
    time, memory, _ = placement.loads.max(1).tolist()
    return float(time * (1 + 0.05 * memory / placement.cluster.usable))


def _placements(choices: Choices, cluster: Cluster) -> list[Placement]:
    placements = [place_tables(choices, cluster, weight) for weight in TIME_WEIGHTS]
    return [placement for placement in placements if placement is not None]


def _has_placement(choices: Choices, cluster: Cluster) -> bool:
    # placements by memory fit most often, so they come first
    return any(place_tables(choices, cluster, weight) is not None for weight in reversed(TIME_WEIGHTS))


def _choices(options: Options, cluster: Cluster) -> list[Choices]:
    cheapest = sum(min(option.total_time for option in of_table) for of_table in options.values())
    even = cheapest / cluster.num_ranks
    distinct: dict[tuple[int, ...], Choices] = {}
    for memory_level in MEMORY_LEVELS:
        for time_level in TIME_LEVELS:
            choices = _pick(options, time_level * even, memory_level, cluster)
            distinct.setdefault(tuple(id(option) for _, option in choices), choices)
    return list(distinct.values())


def _pick(options: Options, max_time: float, max_share: float, cluster: Cluster) -> Choices:
    """The cheapest option of each table whose shards are all below the limits, or else the nearest to them."""
    picked: dict[int, Option] = {}
    for of_table in options.values():
        if id(of_table) not in picked:
            shares = [largest_share(option, cluster) for option in of_table]
            small = [
                option
                for option, share in zip(of_table, shares, strict=True)
                if share <= max(max_share, min(shares))
            ]
            quick = [option for option in small if option.time.max() <= max_time] or [
                min(small, key=lambda option: float(option.time.max()))
            ]
            picked[id(of_table)] = min(
                quick, key=lambda option: (option.total_time, float(option.device.sum()))
            )
    return [(name, picked[id(options[name])]) for name in sorted(options)]


def largest_share(option: Option, cluster: Cluster) -> float:
    """The largest shard's share of the memory that tables may take, on a rank or on its host."""
    return max(
        float(option.device.max()) / cluster.usable, float(option.host.max()) / max(cluster.usable_host, 1)
    )


def _frugal_placements(options: Options, cluster: Cluster) -> list[Placement]:
    """Placements for scarce memory: tables change to their smallest option, those with the least time per
    saved byte first.

    As few as possible change (greedy for the multiple-choice knapsack); bisection finds how many.
    """
    quick = dict(_pick(options, np.inf, 1.0, cluster))
    frugal = {}
    for name, of_table in options.items():
        possible = [option for option in of_table if largest_share(option, cluster) <= 1] or of_table
        frugal[name] = min(possible, key=lambda option: float(option.device.sum()))
    changes = sorted(
        ((frugal[n].total_time - option.total_time) / saved, n)
        for n, option in quick.items()
        if (saved := float(option.device.sum() - frugal[n].device.sum())) > 0
    )

    def choices(num_changed: int) -> Choices:
        changed = {name for _, name in changes[:num_changed]}
        return [(name, frugal[name] if name in changed else option) for name, option in quick.items()]

    if not changes or not _has_placement(choices(len(changes)), cluster):
        return []
    enough = bisect_left(range(len(changes)), True, key=lambda n: _has_placement(choices(n), cluster))
    return _placements(choices(enough), cluster)


MAX_NODES = 128
NUM_LARGEST = 5
MAX_RELAXED = 8
"""The most sets of constraints of tables' specs that are tried without one."""
LEAST_WIDTH = 4
"""The least width of a shard: fbgemm's vector width."""
LOAD_FACTORS = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Cache sizes to try, as shares of a table's rows."""
Cure = tuple[str, Workload, Cluster]
"""(setting to add to the command, the workload with it, the cluster with it)."""


def can_fit(work: Workload, cluster: Cluster) -> bool:
    """True if ``work`` is allowed on ``cluster`` and the planner finds a plan for it."""
    try:
        options = estimate_options(work, cluster)
    except ConfigError:  # a table has no option left
        return False
    problems = sharding_problems(list(work.tables.values()), work.sharding, cluster.device)
    return not problems and fits(options, cluster)


def explain_misfit(work: Workload, cluster: Cluster) -> str:
    """The error message: needed and available memory, the largest tables, and each cure that was found to work."""
    options = estimate_options(work, cluster)
    smallest = [min(of_table, key=lambda option: float(option.device.sum())) for of_table in options.values()]
    needed = np.sum([option.memory.sum(0) for option in smallest], axis=0)
    parts = (f"{memory_text(part)} of {kind}" for kind, part in zip(KINDS, needed, strict=True) if part)
    largest = sorted(work.tables.values(), key=lambda table: -table.num_bytes)[:NUM_LARGEST]
    working = []
    constrained = [*_relaxed(work, cluster)]
    for typed, changed, where in (*constrained, *_cures(work, cluster)):
        if can_fit(changed, where) and (found := search(estimate_options(changed, where), where)):
            slowest = rank_loads(found, where.num_ranks).time.max()
            working.append(f"    - {typed}  ({slowest:.3g} ms a step on the slowest rank)")
    why = "the tables need more memory than there is"
    if constrained:
        why = f"a constraint stands in the way, and {constrained[0][0]} fits"
    lines = [
        f"no sharding plan fits: {why}",
        f"  needed:    {memory_text(needed.sum())} in all ({', '.join(parts)})",
        f"  available: {memory_text(cluster.usable * cluster.num_ranks)} in all, {memory_text(cluster.usable)} on each "
        f"of {cluster} (topology.reserved_share={cluster.reserved_share:g} is kept for the rest)",
        "  the largest tables:",
        *(
            f"    {t.name:<28} {t.rows:>15,} × {t.dim:<4} {t.data_type} {memory_text(t.num_bytes):>12}"
            for t in largest
        ),
    ]
    if working:
        lines += ["  each of these was tried with the planner and makes it fit, estimated:", *working]
    else:
        tried = f"no sharding type, cache, fp16 weights or up to {MAX_NODES} nodes"
        lines.append(f"  {tried} made it fit: use fewer rows or a smaller width")
    return "\n".join(lines)


def smallest_cluster(work: Workload, cluster: Cluster) -> Cluster | None:
    """The fewest of ``cluster``'s devices that a plan fits on: part of one node, or whole nodes. None if
    MAX_NODES are too few.

    Assumes that tables that fit on n nodes fit on more.
    """
    width = cluster.devices_per_node
    # on CPU the ranks of a machine share its memory, so fewer ranks would not need less
    parts = [n for n in range(1, width) if width % n == 0] if cluster.device == "cuda" else []
    sizes = [cluster.resized(n) for n in (*parts, *(width * nodes for nodes in range(1, MAX_NODES + 1)))]
    stop = 1
    while not can_fit(work, sizes[stop - 1]):
        if stop == len(sizes):
            return None
        stop = min(2 * stop, len(sizes))
    return sizes[bisect_left(sizes, True, stop // 2, stop - 1, key=lambda size: can_fit(work, size))]


def _relaxed(work: Workload, cluster: Cluster) -> Iterator[Cure]:
    """The nearest value that fits, for each constraint (of a pattern or a table's spec) without which a plan
    fits.

    Null stands for no constraint.
    """
    tables = work.sharding.tables
    for pattern, given in tables.items():
        for key, value in _looser(given):
            changed = {**tables, pattern: {**given, key: value}}
            cure = replace(work, sharding=replace(work.sharding, tables=changed)), cluster
            if can_fit(*cure):
                yield f"'sharding.tables={{{pattern}:{{{key}:{'null' if value is None else value}}}}}'", *cure
                break
    by_constraints: dict[str, list[Table]] = {}
    for table in work.tables.values():
        if table.sharding:
            by_constraints.setdefault(repr(sorted(table.sharding.items())), []).append(table)
    for group in islice(by_constraints.values(), MAX_RELAXED):
        for key, value in _looser(group[0].sharding):
            changed_tables = {t.name: replace(t, sharding={**t.sharding, key: value}) for t in group}
            cure = replace(work, tables={**work.tables, **changed_tables}), cluster
            if can_fit(*cure):
                names = table_names([table.name for table in group])
                yield (
                    f"sharding: {{{key}: {'null' if value is None else value}}} in the spec of {names}",
                    *cure,
                )
                break


def _looser(given: Mapping[str, object]) -> Iterator[tuple[str, int | None]]:
    """(key, value) that allow more: half the least width, a quarter …; of other constraints null, for none."""
    for key, value in given.items():
        width = value if key == "min_partition" and isinstance(value, int) else 0
        while width >= 2 * LEAST_WIDTH:
            width = max(width // 2 // LEAST_WIDTH * LEAST_WIDTH, LEAST_WIDTH)
            yield key, width
        yield key, None


def _cures(work: Workload, cluster: Cluster) -> Iterator[Cure]:
    """Settings to try: all sharding types, the largest cache that fits, fp16 weights, more devices."""
    if work.sharding.types is not None:
        yield "sharding.types=null", replace(work, sharding=replace(work.sharding, types=None)), cluster
    if cluster.device == "cuda":
        cached = (_cached(work, share, cluster) for share in LOAD_FACTORS)
        yield from islice((cure for cure in cached if can_fit(*cure[1:])), 1)
    tables = work.tables.values()
    is_copied = any("data_parallel" in constraints_of(t, work.sharding).get("types", ()) for t in tables)
    halved = {t.name: replace(t, data_type="fp16") if t.precision_by is None else t for t in tables}
    # fp16 needs fused tables
    if halved != work.tables and not work.dense_kernel and not is_copied:
        yield "tables.data_type=fp16", replace(work, tables=halved), cluster
    if larger := smallest_cluster(work, cluster):
        key = "nodes" if larger.nodes > 1 else "devices_per_node"
        typed = f", for dlrm-plan: topology.{key}={getattr(larger, key)}" if larger.is_described else ""
        yield f"{larger.num_ranks} ranks like these instead of {cluster.num_ranks}{typed}", work, larger


def _cached(work: Workload, share: float, cluster: Cluster) -> Cure:
    """The cure of weights in host memory, with a cache for ``share`` of their rows, for tables that do not fit."""
    tables = work.sharding.tables
    constraints = {"kernels": ["fused", "fused_uvm_caching"], "cache_load_factor": share}
    sharding = replace(work.sharding, tables={**tables, "*": {**(tables.get("*") or {}), **constraints}})
    setting = f"'sharding.tables={{*:{{kernels:[fused,fused_uvm_caching],cache_load_factor:{share:g}}}}}'"
    return setting, replace(work, sharding=sharding), cluster
