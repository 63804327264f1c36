"""Advice where tables do not fit: what is needed, what there is, and settings that were tried and work."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import GIB, Cluster
from dlrm_app.sharding.constraints import constraints_of, sharding_problems
from dlrm_app.sharding.cost import KINDS, Options, Workload, estimate_options
from dlrm_app.sharding.placement import rank_loads
from dlrm_app.sharding.plan import fold
from dlrm_app.sharding.search import fits, largest_share, search
from dlrm_app.text import listed, memory_text

MAX_NODES = 128
NUM_LARGEST = 5
LOAD_FACTORS = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Shares of a table's rows in its cache that are tried."""


@dataclass(frozen=True)
class Suggestion:
    """A setting as it is typed behind what was typed already, and what is planned with it."""

    setting: str
    work: Workload
    cluster: Cluster

    def slowest(self) -> float | None:
        """Milliseconds a step of the slowest rank; None if it is not allowed or the planner finds no plan with it."""
        tables, sharding = list(self.work.tables.values()), self.work.sharding
        if sharding_problems(tables, sharding, self.cluster.device) or not can_fit(self.work, self.cluster):
            return None
        plan = search(estimate_options(self.work, self.cluster), self.cluster)
        return None if plan is None else float(rank_loads(plan, self.cluster.num_ranks).time.max())


def can_fit(work: Workload, cluster: Cluster) -> bool:
    """True if the planner finds a plan for ``work`` on ``cluster``."""
    try:
        return fits(estimate_options(work, cluster), cluster)
    except ConfigError:  # no option is left for some table
        return False


def explain_misfit(work: Workload, cluster: Cluster) -> str:
    """The message: needed, available, the largest tables, and each suggestion that the planner found to work."""
    options = estimate_options(work, cluster)
    smallest = (
        min(of_table, key=lambda option: float(option.device.sum())).memory.sum(0)
        for of_table in options.values()
    )
    needed = sum(smallest, np.zeros(len(KINDS)))
    parts = (f"{memory_text(part)} of {kind}" for kind, part in zip(KINDS, needed, strict=True) if part)
    groups = sorted(fold(list(work.tables.values())), key=lambda group: -group[1][0].num_bytes)
    lines = [
        "no sharding plan fits: the tables need more memory than there is",
        f"  needed:    {memory_text(needed.sum())} in all ({', '.join(parts)})",
        f"  available: {memory_text(cluster.usable * cluster.num_ranks)} in all, {memory_text(cluster.usable)} on each "
        f"of {cluster} (topology.reserved_share={cluster.reserved_share:g} is kept for the rest)",
        "  the largest tables:",
        *(
            f"    {label:<28} {alike[0].rows:>15,} × {alike[0].dim:<4} {alike[0].data_type} "
            f"{memory_text(alike[0].num_bytes):>12}{' each' if len(alike) > 1 else ''}"
            for label, alike in groups[:NUM_LARGEST]
        ),
        *_too_large(options, cluster),
    ]
    working = [
        f"    - {suggestion.setting}  ({slowest:.3g} ms a step on the slowest rank)"
        for suggestion in _suggestions(work, cluster)
        if (slowest := suggestion.slowest()) is not None
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
    hint = "; allow row_wise in sharding.types, which splits it over all ranks"
    return [
        f"  table {listed(too_large, 1)} is larger than a rank as {' or '.join(labels)}"
        f"{'' if 'row_wise' in labels else hint}"
    ]


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


def _suggestions(work: Workload, cluster: Cluster) -> Iterator[Suggestion]:
    """Settings worth trying; of caches the one that makes the fastest plan."""
    if cluster.device == "cuda":
        cached = [_cached(work, cluster, share) for share in LOAD_FACTORS]
        working = [(slowest, each) for each in cached if (slowest := each.slowest()) is not None]
        yield from (each for _, each in sorted(working, key=lambda pair: pair[0])[:1])
    yield from _in_half_precision(work, cluster)
    larger = smallest_cluster(work, cluster)
    if larger is not None:
        ranks = f"{larger.num_ranks} ranks instead of {cluster.num_ranks}"
        yield Suggestion(f"{ranks}, for dlrm-plan: {_typed_cluster(larger)}", work, larger)


def _cached(work: Workload, cluster: Cluster, share: float) -> Suggestion:
    """Weights in host memory behind a cache of ``share`` of their rows, where they do not fit."""
    tables, constraints = (
        work.sharding.tables,
        {"kernels": ["fused", "fused_uvm_caching"], "cache_load_factor": share},
    )
    sharding = replace(work.sharding, tables={**tables, "*": {**(tables.get("*") or {}), **constraints}})
    setting = f"'sharding.tables={{*:{{kernels:[fused,fused_uvm_caching],cache_load_factor:{share:g}}}}}'"
    return Suggestion(setting, replace(work, sharding=sharding), cluster)


def _in_half_precision(work: Workload, cluster: Cluster) -> Iterator[Suggestion]:
    """Weights of two bytes for all tables that no spec or pattern names, where fbgemm has the optimizer for them."""
    tables = work.tables.values()
    may_be_copied = any(
        "data_parallel" in constraints_of(table, work.sharding).get("types", ()) for table in tables
    )
    if work.dense_kernel or may_be_copied:  # neither is fused, and fp16 beside a torch optimizer is refused
        return
    changed = {t.name: replace(t, data_type="fp16") if t.precision_by is None else t for t in tables}
    if changed != work.tables:
        yield Suggestion("tables.data_type=fp16", replace(work, tables=changed), cluster)


def _typed_cluster(larger: Cluster) -> str:
    """The keys that change of a described cluster; all of one that was started."""
    key = "nodes" if larger.nodes > 1 else "devices_per_node"
    if larger.is_described:
        return f"topology.{key}={getattr(larger, key)}"
    keys = {key: getattr(larger, key) for key in ("device", "nodes", "devices_per_node", "reserved_share")}
    sizes = {"memory_gib": larger.memory, "host_memory_gib": larger.host_memory}
    keys |= {key: int(size / GIB * 1e6) / 1e6 for key, size in sizes.items()}
    return " ".join(["topology=custom", *(f"topology.{key}={value}" for key, value in keys.items())])
