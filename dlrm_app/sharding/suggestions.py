"""Advice where tables do not fit: what is needed, what there is, and settings that were tried and work."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.constraints import constraints_of, sharding_problems
from dlrm_app.sharding.cost import KINDS, Workload, estimate_options
from dlrm_app.sharding.placement import rank_loads
from dlrm_app.sharding.search import fits, search
from dlrm_app.text import memory_text

MAX_NODES = 128
NUM_LARGEST = 5
LOAD_FACTORS = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Shares of a table's rows in its cache that are tried."""
Cure = tuple[str, Workload, Cluster]
"""A setting as it is typed behind what was typed already, and what is planned with it."""


def can_fit(work: Workload, cluster: Cluster) -> bool:
    """True if ``work`` is allowed on ``cluster`` and the planner finds a plan for it."""
    try:
        options = estimate_options(work, cluster)
    except ConfigError:  # no option is left for some table
        return False
    problems = sharding_problems(list(work.tables.values()), work.sharding, cluster.device)
    return not problems and fits(options, cluster)


def explain_misfit(work: Workload, cluster: Cluster) -> str:
    """The message: needed, available, the largest tables, and each cure that the planner found to work."""
    options = estimate_options(work, cluster)
    smallest = [min(of_table, key=lambda option: float(option.device.sum())) for of_table in options.values()]
    needed = np.sum([option.memory.sum(0) for option in smallest], axis=0)
    parts = (f"{memory_text(part)} of {kind}" for kind, part in zip(KINDS, needed, strict=True) if part)
    largest = sorted(work.tables.values(), key=lambda table: -table.num_bytes)[:NUM_LARGEST]
    working = []
    for typed, changed, where in _cures(work, cluster):
        if can_fit(changed, where) and (found := search(estimate_options(changed, where), where)):
            slowest = rank_loads(found, where.num_ranks).time.max()
            working.append(f"    - {typed}  ({slowest:.3g} ms a step on the slowest rank)")
    lines = [
        "no sharding plan fits: the tables need more memory than there is",
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
    """The fewest of ``cluster``'s devices that a plan fits on: part of one node, or whole nodes; None: too many.

    Takes for granted that what fits on n nodes fits on more.
    """
    width = cluster.devices_per_node
    # on CPU the ranks of a machine share its memory: half of them need no less
    parts = [n for n in range(1, width) if width % n == 0] if cluster.device == "cuda" else []
    sizes = [cluster.resized(n) for n in (*parts, *(width * nodes for nodes in range(1, MAX_NODES + 1)))]
    stop = 1
    while not can_fit(work, sizes[stop - 1]):
        if stop == len(sizes):
            return None
        stop = min(2 * stop, len(sizes))
    return sizes[bisect_left(sizes, True, stop // 2, stop - 1, key=lambda size: can_fit(work, size))]


def _cures(work: Workload, cluster: Cluster) -> Iterator[Cure]:
    """Settings worth trying: all sharding types, the largest cache that fits, fp16 weights, more devices."""
    if work.sharding.types is not None:
        yield "sharding.types=null", replace(work, sharding=replace(work.sharding, types=None)), cluster
    if cluster.device == "cuda":
        cached = (_cached(work, share, cluster) for share in LOAD_FACTORS)
        yield from islice((cure for cure in cached if can_fit(*cure[1:])), 1)
    tables = work.tables.values()
    is_copied = any("data_parallel" in constraints_of(t, work.sharding).get("types", ()) for t in tables)
    halved = {t.name: replace(t, data_type="fp16") if t.precision_by is None else t for t in tables}
    # where a table is not fused, fp16 is refused
    if halved != work.tables and not work.dense_kernel and not is_copied:
        yield "tables.data_type=fp16", replace(work, tables=halved), cluster
    if larger := smallest_cluster(work, cluster):
        key = "nodes" if larger.nodes > 1 else "devices_per_node"
        typed = f", for dlrm-plan: topology.{key}={getattr(larger, key)}" if larger.is_described else ""
        yield f"{larger.num_ranks} ranks like these instead of {cluster.num_ranks}{typed}", work, larger


def _cached(work: Workload, share: float, cluster: Cluster) -> Cure:
    """Weights in host memory behind a cache of ``share`` of their rows, where they do not fit."""
    tables = work.sharding.tables
    constraints = {"kernels": ["fused", "fused_uvm_caching"], "cache_load_factor": share}
    sharding = replace(work.sharding, tables={**tables, "*": {**(tables.get("*") or {}), **constraints}})
    setting = f"'sharding.tables={{*:{{kernels:[fused,fused_uvm_caching],cache_load_factor:{share:g}}}}}'"
    return setting, replace(work, sharding=sharding), cluster
