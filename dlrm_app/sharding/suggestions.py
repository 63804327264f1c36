"""Advice where tables do not fit: what is needed, what there is, and settings that were tried and work."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import GIB, Cluster
from dlrm_app.sharding.constraints import constraints_of, sharding_problems
from dlrm_app.sharding.cost import KINDS, Options, Workload, estimate_options
from dlrm_app.sharding.placement import rank_loads
from dlrm_app.sharding.search import fits, largest_share, search
from dlrm_app.text import listed, memory_text

MAX_NODES = 128
NUM_LARGEST = 5
LOAD_FACTORS = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Shares of a table's rows in its cache that are tried."""
Cure = tuple[str, Workload, Cluster]
"""A setting as it is typed behind what was typed already, and what is planned with it."""


def can_fit(work: Workload, cluster: Cluster) -> bool:
    """True if the planner finds a plan for ``work`` on ``cluster``."""
    try:
        return fits(estimate_options(work, cluster), cluster)
    except ConfigError:  # no option is left for some table
        return False


def _slowest(work: Workload, cluster: Cluster) -> float | None:
    """Milliseconds a step of the slowest rank; None if ``work`` is not allowed or the planner finds no plan."""
    if sharding_problems(list(work.tables.values()), work.sharding, cluster.device) or not can_fit(
        work, cluster
    ):
        return None
    plan = search(estimate_options(work, cluster), cluster)
    return None if plan is None else float(rank_loads(plan, cluster.num_ranks).time.max())


def explain_misfit(work: Workload, cluster: Cluster) -> str:
    """The message: needed, available, the largest tables, and each cure that the planner found to work."""
    options = estimate_options(work, cluster)
    smallest = [min(of_table, key=lambda option: float(option.device.sum())) for of_table in options.values()]
    needed = np.sum([option.memory.sum(0) for option in smallest], axis=0)
    parts = (f"{memory_text(part)} of {kind}" for kind, part in zip(KINDS, needed, strict=True) if part)
    largest = sorted(work.tables.values(), key=lambda table: -table.num_bytes)[:NUM_LARGEST]
    working = [
        f"    - {setting}  ({slowest:.3g} ms a step on the slowest rank)"
        for setting, changed, where in _cures(work, cluster)
        if (slowest := _slowest(changed, where)) is not None
    ]
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
        *_too_large(options, cluster),
    ]
    if working:
        lines += ["  each of these was tried with the planner and makes it fit, estimated:", *working]
    else:
        lines.append(
            "  no cache, fp16 weights or up to 128 nodes made it fit: use fewer rows or a smaller width"
        )
    return "\n".join(lines)


def _too_large(options: Options, cluster: Cluster) -> list[str]:
    """Tables that fit on no rank under any allowed option, however empty it is."""
    too_large = [
        name
        for name, of_table in options.items()
        if all(largest_share(option, cluster) > 1 for option in of_table)
    ]
    if not too_large:
        return []
    labels = [option.label for option in options[too_large[0]]]
    hint = (
        "" if "row_wise" in labels else "; allow row_wise in sharding.types, which splits it over all ranks"
    )
    return [f"  table {listed(too_large, 1)} is larger than a rank as {' or '.join(labels)}{hint}"]


def smallest_cluster(work: Workload, cluster: Cluster) -> Cluster | None:
    """The fewest of ``cluster``'s devices that a plan fits on: part of one node, or whole nodes; None: too many.

    Takes for granted that what fits on n nodes fits on more.
    """
    width = cluster.devices_per_node
    # on CPU the ranks of a machine share its memory: half of them need no less
    parts = [n for n in range(1, width + 1) if width % n == 0] if cluster.device == "cuda" else [width]
    for num_ranks in parts:
        if can_fit(work, cluster.resized(num_ranks)):
            return cluster.resized(num_ranks)
    low, high = 1, 2
    while not can_fit(work, replace(cluster, nodes=high)):
        if high >= MAX_NODES:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if can_fit(work, replace(cluster, nodes=middle)):
            high = middle
        else:
            low = middle
    return replace(cluster, nodes=high)


def _cures(work: Workload, cluster: Cluster) -> Iterator[Cure]:
    """Settings worth trying: of caches the one that makes the fastest plan, fp16 weights, more devices."""
    if cluster.device == "cuda":
        cached = [_cached(work, share) for share in LOAD_FACTORS]
        working = [(slowest, cure) for cure in cached if (slowest := _slowest(cure[1], cluster)) is not None]
        if working:
            setting, changed = min(working, key=lambda pair: pair[0])[1]
            yield setting, changed, cluster
    tables = work.tables.values()
    is_copied = any("data_parallel" in constraints_of(t, work.sharding).get("types", ()) for t in tables)
    halved = {t.name: replace(t, data_type="fp16") if t.precision_by is None else t for t in tables}
    # where a table is not fused, fp16 is refused
    if halved != work.tables and not work.dense_kernel and not is_copied:
        yield "tables.data_type=fp16", replace(work, tables=halved), cluster
    if larger := smallest_cluster(work, cluster):
        ranks = f"{larger.num_ranks} ranks instead of {cluster.num_ranks}"
        yield f"{ranks}, for dlrm-plan: {_typed_cluster(larger)}", work, larger


def _cached(work: Workload, share: float) -> tuple[str, Workload]:
    """Weights in host memory behind a cache of ``share`` of their rows, where they do not fit."""
    tables = work.sharding.tables
    constraints = {"kernels": ["fused", "fused_uvm_caching"], "cache_load_factor": share}
    sharding = replace(work.sharding, tables={**tables, "*": {**(tables.get("*") or {}), **constraints}})
    setting = f"'sharding.tables={{*:{{kernels:[fused,fused_uvm_caching],cache_load_factor:{share:g}}}}}'"
    return setting, replace(work, sharding=sharding)


def _typed_cluster(larger: Cluster) -> str:
    """The keys that change of a described cluster; all of one that was started."""
    key = "nodes" if larger.nodes > 1 else "devices_per_node"
    if larger.is_described:
        return f"topology.{key}={getattr(larger, key)}"
    keys = {key: getattr(larger, key) for key in ("device", "nodes", "devices_per_node", "reserved_share")}
    sizes = {"memory_gib": larger.memory, "host_memory_gib": larger.host_memory}
    keys |= {key: int(size / GIB * 1e6) / 1e6 for key, size in sizes.items()}
    return " ".join(["topology=custom", *(f"topology.{key}={value}" for key, value in keys.items())])
