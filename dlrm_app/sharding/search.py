"""The fast planner's search: which sharding option for each table, then where its shards go.

A table takes the cheapest option whose shards are all below a limit of time and of memory: low limits split tables,
high ones keep them whole. A few dozen pairs of limits are tried, each placed and improved, and the best plan is
kept. The result depends on the tables and the cluster alone, not on the order in which they are given.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.cost import Option, Options
from dlrm_app.sharding.placement import Assignment, Board, improve, place_tables

TIME_LEVELS = (np.inf, 4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.25, 0.1)
"""Limits of time, in units of a rank's time if the cheapest options were spread evenly."""
MEMORY_LEVELS = (1.0, 0.5, 0.25, 0.1)
"""Limits of memory, as shares of what tables may take on a rank."""
TIME_WEIGHTS = (1.0, 0.5, 0.0)
"""Weights of time in the order of placing; the rest is memory's."""
NUM_IMPROVED = 6
"""Number of the best placements that are improved."""
Choices = Sequence[tuple[str, Option]]
"""An option for each table, by name."""


def search(options: Options, cluster: Cluster) -> Assignment | None:
    """The plan with the least time of the slowest rank, ties broken by memory; None if none was found that fits."""
    boards = [board for choices in _choices(options, cluster) for board in _placements(choices, cluster)]
    may_leave_devices = any(option.host.any() for of_table in options.values() for option in of_table)
    if not boards or may_leave_devices:
        boards += _frugal_placements(options, cluster)
    boards.sort(key=_cost)
    for board in boards[:NUM_IMPROVED]:
        improve(board)
    return min(boards[:NUM_IMPROVED], key=_cost).placed if boards else None


def fits(options: Options, cluster: Cluster) -> bool:
    """True if ``search`` would find a plan; takes less time."""
    least = sum(min(float(option.device.sum()) for option in of_table) for of_table in options.values())
    if least > cluster.usable * cluster.num_ranks:
        return False
    return any(_has_placement(choices, cluster) for choices in _choices(options, cluster)) or bool(
        _frugal_placements(options, cluster)
    )


def _cost(board: Board) -> float:
    """Time, and a little memory: a twentieth of the time is worth all the memory that tables may take."""
    time, memory, _ = board.loads.max(1).tolist()
    return float(time * (1 + 0.05 * memory / board.cluster.usable))


def _placements(choices: Choices, cluster: Cluster) -> list[Board]:
    boards = [place_tables(choices, cluster, weight) for weight in TIME_WEIGHTS]
    return [board for board in boards if board is not None]


def _has_placement(choices: Choices, cluster: Cluster) -> bool:
    # those that look at memory fit most often
    return any(place_tables(choices, cluster, weight) is not None for weight in reversed(TIME_WEIGHTS))


def _choices(options: Options, cluster: Cluster) -> list[Choices]:
    """Every different choice of options that the limits lead to."""
    cheapest = sum(min(option.total_time for option in of_table) for of_table in options.values())
    even = cheapest / cluster.num_ranks
    distinct: dict[tuple[int, ...], Choices] = {}
    for memory_level in MEMORY_LEVELS:
        for time_level in TIME_LEVELS:
            choices = _pick(options, time_level * even, memory_level, cluster)
            distinct.setdefault(tuple(id(option) for _, option in choices), choices)
    return list(distinct.values())


def _pick(options: Options, max_time: float, max_share: float, cluster: Cluster) -> Choices:
    """The cheapest option of each table whose shards all stay below the limits, or that comes nearest."""
    known: dict[int, Option] = {}
    for of_table in options.values():
        if id(of_table) not in known:
            shares = [largest_share(option, cluster) for option in of_table]
            small = [
                option
                for option, share in zip(of_table, shares, strict=True)
                if share <= max(max_share, min(shares))
            ]
            quick = [option for option in small if option.time.max() <= max_time] or [
                min(small, key=lambda option: float(option.time.max()))
            ]
            known[id(of_table)] = min(
                quick, key=lambda option: (option.total_time, float(option.device.sum()))
            )
    return [(name, known[id(options[name])]) for name in sorted(options)]


def largest_share(option: Option, cluster: Cluster) -> float:
    """Share of the memory that tables may take on a rank or in its host, of the largest shard."""
    return max(
        float(option.device.max()) / cluster.usable, float(option.host.max()) / max(cluster.usable_host, 1)
    )


def _frugal_placements(options: Options, cluster: Cluster) -> list[Board]:
    """Placements where memory is short: tables change to the option that takes least, cheapest per byte saved first.

    As few change as it takes (the greedy of the multiple-choice knapsack), found by bisection.
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
