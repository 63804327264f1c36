"""When tables do not fit: what is needed, what there is, and settings that were tried and work."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

import numpy as np

from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import GIB, Cluster
from dlrm_app.sharding.constraints import constraints_of, sharding_problems
from dlrm_app.sharding.cost import KINDS, Option, Options, Workload, estimate_options
from dlrm_app.sharding.placement import rank_loads
from dlrm_app.sharding.plan import fold
from dlrm_app.sharding.search import fits, largest_share, search
from dlrm_app.tables.specs import Table
from dlrm_app.text import listed, memory_text

MAX_NODES = 1024
NUM_LARGEST = 5
LOAD_FACTORS = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Shares of a table's rows in its cache that are tried."""


@dataclass(frozen=True)
class Suggestion:
    """A setting as it is typed behind what was typed already, and what is planned with it."""

    setting: str
    work: Workload
    cluster: Cluster

    def works(self) -> bool:
        """Whether it is allowed for every table, and the planner finds a plan with it."""
        tables, sharding = list(self.work.tables.values()), self.work.sharding
        if sharding_problems(tables, sharding, self.cluster.device):
            return False
        return can_fit(self.work, self.cluster)

    def slowest(self) -> float | None:
        """Milliseconds a step of the slowest rank; None if there is no plan after all."""
        plan = search(estimate_options(self.work, self.cluster), self.cluster)
        return None if plan is None else float(rank_loads(plan, self.cluster.num_ranks).time.max())


def can_fit(work: Workload, cluster: Cluster) -> bool:
    """Whether the planner finds a plan for ``work`` on ``cluster``."""
    try:
        return fits(estimate_options(work, cluster), cluster)
    except ConfigError:  # no option is left for some table
        return False


def explain_misfit(work: Workload, cluster: Cluster) -> str:
    """The message: needed, available, the largest tables, and each suggestion that the planner found to work."""
    options = estimate_options(work, cluster)
    needed = sum(
        (min(of_table, key=_bytes).memory.sum(0) for of_table in options.values()), np.zeros(len(KINDS))
    )
    parts = ", ".join(
        f"{memory_text(part)} of {kind}" for kind, part in zip(KINDS, needed, strict=True) if part
    )
    room = cluster.usable * cluster.num_ranks
    lines = [
        "no sharding plan fits: the tables need more memory than there is",
        f"  needed:    {memory_text(needed.sum())} in all ({parts})",
        f"  available: {memory_text(room)} in all, {memory_text(cluster.usable)} on each of {cluster} "
        f"(topology.reserved_share={cluster.reserved_share:g} is kept for the rest)",
        "  the largest tables:",
        *_largest(list(work.tables.values())),
        *_too_large(options, cluster),
    ]
    working = [
        f"{suggestion.setting}  ({slowest:.3g} ms a step on the slowest rank)"
        for suggestion in _suggestions(work, cluster)
        if (slowest := suggestion.slowest()) is not None
    ]
    if working:
        lines += [
            "  each of these was tried with the planner and makes it fit, estimated:",
            *(f"    - {line}" for line in working),
        ]
    else:
        lines.append(
            "  tried without success: UVM caching, fp16 weights, more ranks; what is left is fewer rows or a "
            "smaller width"
        )
    return "\n".join(lines)


def smallest_cluster(work: Workload, cluster: Cluster) -> Cluster | None:
    """The fewest of ``cluster``'s devices that a plan fits on: part of one node, or whole nodes; None: too many.

    Takes for granted that what fits on n nodes fits on more.
    """
    width = cluster.devices_per_node
    # on CPU the ranks of a machine share its memory, so that half of them have no less of it
    parts = [n for n in range(1, width + 1) if width % n == 0] if cluster.device == "cuda" else [width]
    for num_ranks in parts:
        if can_fit(work, cluster.resized(num_ranks)):
            return cluster.resized(num_ranks)
    low, high = 1, 2
    while not can_fit(work, replace(cluster, nodes=high)):
        if high >= MAX_NODES or _is_hopeless(work, replace(cluster, nodes=low), replace(cluster, nodes=high)):
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if can_fit(work, replace(cluster, nodes=middle)):
            high = middle
        else:
            low = middle
    return replace(cluster, nodes=high)


def _is_hopeless(work: Workload, smaller: Cluster, larger: Cluster) -> bool:
    """Whether some table is too large for a rank of ``larger``, and more nodes do not make its parts smaller."""
    before, after = (_largest_part(work, cluster) for cluster in (smaller, larger))
    return after > 1 and after >= before


def _largest_part(work: Workload, cluster: Cluster) -> float:
    """Of the room on a rank, what the largest table takes under the option that cuts it smallest."""
    try:
        options = estimate_options(work, cluster)
    except ConfigError:
        return inf
    return max(min(largest_share(option, cluster) for option in of_table) for of_table in options.values())


def _bytes(option: Option) -> float:
    return float(option.device.sum())


def _largest(tables: Sequence[Table]) -> list[str]:
    groups = sorted(fold(tables), key=lambda group: -group[1][0].num_bytes)
    return [
        f"    {label:<28} {alike[0].rows:>15,} × {alike[0].dim:<4} {alike[0].data_type} "
        f"{memory_text(alike[0].num_bytes):>12}{' each' if len(alike) > 1 else ''}"
        for label, alike in groups[:NUM_LARGEST]
    ]


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


def _suggestions(work: Workload, cluster: Cluster) -> Iterator[Suggestion]:
    yield from _by_caching(work, cluster)
    yield from _by_half_precision(work, cluster)
    larger = smallest_cluster(work, cluster)
    if larger is not None:
        ranks = f"{larger.num_ranks} ranks instead of {cluster.num_ranks}"
        yield Suggestion(f"{ranks}, for dlrm-plan: {_typed_cluster(larger)}", work, larger)


def _typed_cluster(larger: Cluster) -> str:
    """What changes of a described cluster; all of one that was started."""
    key = "nodes" if larger.nodes > 1 else "devices_per_node"
    if larger.is_described:
        return f"topology.{key}={getattr(larger, key)}"
    sizes = {"memory_gib": larger.memory, "host_memory_gib": larger.host_memory}
    keys = {
        **{key: getattr(larger, key) for key in ("device", "nodes", "devices_per_node", "reserved_share")},
        **{key: int(size / GIB * 1e6) / 1e6 for key, size in sizes.items()},
    }
    return " ".join(["topology=custom", *(f"topology.{key}={value}" for key, value in keys.items())])


def _by_caching(work: Workload, cluster: Cluster) -> Iterator[Suggestion]:
    """Weights in host memory behind a cache, where they do not fit: the share on the device that is fastest."""
    if cluster.device != "cuda":
        return
    working = []
    for share in LOAD_FACTORS:
        working += list(islice((s for s in _cached(work, cluster, share) if s.works()), 1))
    if working:
        yield min(working, key=lambda suggestion: suggestion.slowest() or inf)


def _cached(work: Workload, cluster: Cluster, share: float) -> Iterator[Suggestion]:
    """All tables allowed to be cached by one pattern more; then so without what their specs say of the same keys."""
    constraints = {"kernels": ["fused", "fused_uvm_caching"], "cache_load_factor": share}
    pattern = _all_but(work.sharding.tables)
    sharding = replace(work.sharding, tables={**work.sharding.tables, pattern: constraints})
    typed = (
        f"'sharding.tables={{{pattern}:{{kernels:[fused,fused_uvm_caching],cache_load_factor:{share:g}}}}}'"
    )
    yield Suggestion(typed, replace(work, sharding=sharding), cluster)
    if overriding := [t.name for t in work.tables.values() if t.sharding.keys() & constraints.keys()]:
        freed = {
            name: replace(table, sharding={k: v for k, v in table.sharding.items() if k not in constraints})
            for name, table in work.tables.items()
        }
        without = f", and without {' and '.join(constraints)} in the specs of {listed(overriding, 1)}"
        yield Suggestion(typed + without, replace(work, sharding=sharding, tables=freed), cluster)


def _by_half_precision(work: Workload, cluster: Cluster) -> Iterator[Suggestion]:
    """Weights of two bytes for all tables whose own specs leave it open, where fbgemm has the optimizer for them."""
    tables = work.tables.values()
    may_be_copied = any(
        "data_parallel" in constraints_of(table, work.sharding).get("types", ()) for table in tables
    )
    if work.dense_kernel or may_be_copied:  # neither is fused, and fp16 beside a torch optimizer is refused
        return
    changed = {
        table.name: table if table.precision_by == "" else replace(table, data_type="fp16")
        for table in tables
    }
    patterns = {table.precision_by for table in tables if table.precision_by}
    setting = f"'tables.data_types={{{_all_but(patterns)}:fp16}}'" if patterns else "tables.data_type=fp16"
    suggestion = Suggestion(setting, replace(work, tables=changed), cluster)
    if changed != work.tables and suggestion.works():
        yield suggestion


def _all_but(patterns: Container[str]) -> str:
    """A pattern that fits every table and is none of ``patterns``, for the last one given is the one that counts."""
    pattern = "*"
    while pattern in patterns:
        pattern += "*"
    return pattern
