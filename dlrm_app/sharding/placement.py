"""Places shards on ranks: the largest first, each on the least loaded rank with enough memory. Then exchanges tables
between ranks until no exchange lowers the largest load.

Loads are arrays of three rows: milliseconds a step, bytes in the rank's memory, bytes in its host's memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.cost import KINDS, Option

EVERYWHERE = ("row_wise", "data_parallel")
ON_NODES = ("table_row_wise", "table_column_wise", "grid_shard")
TIME, MEMORY, HOST = range(3)


@dataclass(frozen=True)
class Placed:
    """A table's option and the rank of each of its shards."""

    option: Option
    ranks: tuple[int, ...]


Assignment = Mapping[str, Placed]


@dataclass(frozen=True)
class RankLoads:
    """Loads of W ranks: memory in bytes by KINDS [W, 4], host bytes [W], milliseconds a step [W]."""

    memory: np.ndarray
    host: np.ndarray
    time: np.ndarray

    @property
    def device(self) -> np.ndarray:
        """Bytes in each rank's own memory [W]."""
        return self.memory.sum(1)


def rank_loads(assignment: Assignment, num_ranks: int) -> RankLoads:
    """Adds up the loads of all shards by rank."""
    memory, host, time = np.zeros((num_ranks, len(KINDS))), np.zeros(num_ranks), np.zeros(num_ranks)
    for placed in assignment.values():
        ranks, option = np.array(placed.ranks), placed.option
        np.add.at(memory, ranks, option.memory)
        np.add.at(host, ranks, option.host)
        np.add.at(time, ranks, option.time)
    return RankLoads(memory, host, time)


def imbalance(values: np.ndarray) -> float:
    """The largest value over the mean; 1 means balanced."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean else 1.0


class Placement:
    """Tables placed so far, and the ``loads`` [3, W] of their ranks.

    Loads are compared in units of their mean.
    """

    def __init__(self, choices: Sequence[tuple[str, Option]], cluster: Cluster, time_weight: float) -> None:
        self.cluster = cluster
        self.loads = np.zeros((3, cluster.num_ranks))
        self.limits = np.array([np.inf, cluster.usable, cluster.usable_host])
        self.placed: dict[str, Placed] = {}
        needed = sum(float(option.device.sum()) for _, option in choices)
        self._per_time = (
            time_weight * cluster.num_ranks / (sum(option.total_time for _, option in choices) or 1)
        )
        self._per_byte = (1 - time_weight) * cluster.num_ranks / (needed or 1)

    def weigh(self, loads: np.ndarray) -> np.ndarray:
        """One number for each load [3, …]: its time and memory in units of their means, weighted and added."""
        weight: np.ndarray = loads[TIME] * self._per_time + loads[MEMORY] * self._per_byte
        return weight

    def put(self, name: str, option: Option) -> bool:
        """Puts a table's shards on ranks; False if there is no room."""
        if option.sharding_type in EVERYWHERE:
            ranks: list[int] | None = [*range(self.cluster.num_ranks)]
        else:
            ranks = self._nodes_for(option) if option.sharding_type in ON_NODES else self._ranks_for(option)
        if ranks is None:
            return False
        _add(self.loads, ranks, option.loads)
        self.placed[name] = Placed(option, tuple(ranks))
        return bool((self.loads <= self.limits[:, None]).all())

    def _nodes_for(self, option: Option) -> list[int] | None:
        """Ranks for groups of shards that must share a node; each group goes to the node with the least load then."""
        is_free = option.sharding_type == "table_column_wise"  # its shards may be in any order
        group = len(option.time) if is_free else self.cluster.devices_per_node
        ranks: list[int] = []
        extra = np.zeros_like(self.loads)
        for start in range(0, len(option.time), group):
            loads = option.loads[:, start : start + group]
            node = self._best_node(loads, self.loads + extra, is_free)
            if node is None:
                return None
            ranks += node
            _add(extra, node, loads)
        return ranks

    def _best_node(self, shards: np.ndarray, loads: np.ndarray, is_free: bool) -> list[int] | None:
        """The ranks of the best node for ``shards`` [3, S], which its ranks get in turn; None if no node has room."""
        nodes, width = self.cluster.nodes, self.cluster.devices_per_node
        loads = loads.reshape(3, nodes, width)
        order = np.tile(np.arange(width), (nodes, 1))
        if is_free:
            order = np.argsort(self.weigh(loads), axis=1, kind="stable")
        slots = order[:, np.arange(shards.shape[1]) % width]
        added = np.zeros_like(loads)
        _add(added, (np.arange(nodes)[:, None], slots), shards[:, None, :])
        fits = (loads + added <= self.limits[:, None, None]).all((0, 2))
        score = np.where(fits, self.weigh(loads + added).max(1), np.inf)
        node = int(score.argmin())
        return None if score[node] == np.inf else [int(rank) for rank in node * width + slots[node]]

    def _ranks_for(self, option: Option) -> list[int] | None:
        """The least loaded rank with room for each shard.

        A table's shards go to different ranks while there are enough.
        """
        ranks: list[int] = []
        extra = np.zeros_like(self.loads)
        for shard in option.loads.T:
            loads = self.loads + extra
            score = self.weigh(loads)
            score[(loads + shard[:, None] > self.limits[:, None]).any(0)] = np.inf
            if len(ranks) < self.cluster.num_ranks:
                score[ranks] = np.inf
            rank = int(score.argmin())
            if score[rank] == np.inf:
                return None
            ranks.append(rank)
            extra[:, rank] += shard
        return ranks


def _add(loads: np.ndarray, places: Any, shards: np.ndarray) -> None:
    """Adds ``shards`` [3, …] to ``loads`` [3, …] at ``places`` in each row; a place may occur several times."""
    for row, values in zip(loads, shards, strict=True):
        np.add.at(row, places, values)


def place_tables(
    choices: Sequence[tuple[str, Option]], cluster: Cluster, time_weight: float
) -> Placement | None:
    """Places all of ``choices``. Returns None if they do not fit in this order.

    Tables on every rank come first, then those that need whole nodes, then the others; in each kind the largest first
    (Graham's LPT rule). ``time_weight``: 1 to balance time alone, 0 memory alone.
    """
    placement = Placement(choices, cluster, time_weight)

    def sort_key(choice: tuple[str, Option]) -> tuple[int, float, str]:
        name, option = choice
        stage = 0 if option.sharding_type in EVERYWHERE else 1 if option.sharding_type in ON_NODES else 2
        return stage, -float(placement.weigh(option.loads).max()), name

    has_room = all(placement.put(name, option) for name, option in sorted(choices, key=sort_key))
    return placement if has_room else None


MAX_EXCHANGES = 20_000
MAX_PAIR_EXCHANGES = 300
NUM_PARTNERS = 48
"""Number of the least loaded groups that exchange pairs with the fullest one."""
TOLERANCE = 1e-9


def improve(placement: Placement) -> None:
    """Lowers the largest time, then the largest memory without raising the largest time.

    First tables on a whole node are moved between nodes, then tables on one rank between ranks. Shards of
    column-wise tables stay where they are, so that they stay on different ranks.
    """
    if placement.cluster.nodes > 1:
        _improve(placement, "table_row_wise", placement.cluster.devices_per_node)
    _improve(placement, "table_wise", 1)


def _improve(placement: Placement, kind: str, width: int) -> None:
    """Moves tables of ``kind`` between groups of ``width`` ranks. A group's load is that of its fullest rank."""
    moved = {name: placed for name, placed in placement.placed.items() if placed.option.sharding_type == kind}
    names = sorted(moved)
    exchange = _Exchange([moved[name] for name in names], placement, width)
    exchange.lower(TIME)
    exchange.limits[TIME] = exchange.loads[TIME].max() * (1 + TOLERANCE)
    exchange.lower(MEMORY)
    for name, group in zip(names, exchange.group.tolist(), strict=False):
        ranks = tuple(range(group * width, (group + 1) * width))
        placement.placed[name] = Placed(moved[name].option, ranks)
    before, after = placement.loads, rank_loads(placement.placed, placement.cluster.num_ranks)
    placement.loads = np.stack([after.time, after.device, after.host])
    highest = np.maximum(before.max(1), exchange.limits)
    if width > 1 and (placement.loads.max(1) > highest * (1 + TOLERANCE)).any():
        placement.placed.update(moved)  # a table's shards differ, and sums of the largest ones were too high
        placement.loads = before


class _Exchange:
    """Exchanges P tables between groups of ``width`` ranks.

    Each group also has an empty piece, listed after the tables, so that a move is an exchange too. ``group``: each
    piece's group; ``pieces`` [3, P + groups], ``loads`` [3, groups], ``limits`` [3].
    """

    def __init__(self, tables: Sequence[Placed], placement: Placement, width: int) -> None:
        num_groups = placement.cluster.num_ranks // width
        self.num_tables = len(tables)
        self.group = np.array([*(each.ranks[0] // width for each in tables), *range(num_groups)])
        self.pieces = np.array([*(each.option.loads.max(1) for each in tables), *np.zeros((num_groups, 3))]).T
        self.loads = placement.loads.reshape(3, num_groups, width).max(2)
        self.limits = placement.limits.copy()

    def lower(self, which: int) -> None:
        """Exchanges pieces of the fullest group with other groups while that lowers the larger of the two loads."""
        num_pairs = 0
        for _ in range(MAX_EXCHANGES):
            fullest = int(self.loads[which].argmax())
            if self._exchange(
                which, fullest, self._kinds_in(fullest)[:, None], np.arange(len(self.group))[:, None]
            ):
                continue
            if num_pairs == MAX_PAIR_EXCHANGES:
                return
            num_pairs += 1
            emptiest = np.argsort(self.loads[which], kind="stable")[:NUM_PARTNERS]
            bundles = [self._bundles_in(int(group)) for group in emptiest if group != fullest]
            if not bundles:
                return
            if not self._exchange(which, fullest, self._bundles_in(fullest), np.concatenate(bundles)):
                return

    def _kinds_in(self, group: int) -> np.ndarray:
        """The pieces in ``group``, one of each set of equal ones, the empty piece last."""
        pieces = np.flatnonzero(self.group == group)
        _, firsts = np.unique(self.pieces[:, pieces], axis=1, return_index=True)
        return pieces[np.sort(firsts)]

    def _bundles_in(self, group: int) -> np.ndarray:
        """Every single piece and every pair of different pieces in ``group``, [K, 2]; the empty piece means none."""
        empty = np.flatnonzero(self.group == group)[-1]
        kinds = self._kinds_in(group)[:-1]
        pairs = [(empty, empty), *((piece, empty) for piece in kinds), *combinations(kinds, 2)]
        return np.array(pairs, dtype=np.int64)

    def _exchange(self, which: int, fullest: int, given: np.ndarray, taken: np.ndarray) -> bool:
        """Makes the exchange that lowers load ``which`` most.

        Returns False if none does. Bundles: [K, pieces in each].
        """
        partner = self.group[taken[:, 0]]
        change = self.pieces[:, given].sum(2)[:, :, None] - self.pieces[:, taken].sum(2)[:, None, :]
        here, there = self.loads[:, fullest, None, None] - change, self.loads[:, partner][:, None, :] + change
        peak = np.maximum(here[which], there[which])
        peak[:, partner == fullest] = np.inf
        for load in {TIME, MEMORY, HOST} - {which}:
            too_much = (here[load] > self.limits[load]) & (change[load] < 0)
            too_much |= (there[load] > self.limits[load]) & (change[load] > 0)
            peak[too_much] = np.inf
        row, column = divmod(int(peak.argmin()), peak.shape[1])
        if not peak[row, column] < self.loads[which, fullest] * (1 - TOLERANCE):
            return False
        other = int(partner[column])
        self._transfer(given[row], fullest, other)
        self._transfer(taken[column], other, fullest)
        return True

    def _transfer(self, pieces: np.ndarray, source: int, target: int) -> None:
        real = pieces[pieces < self.num_tables]
        moved = self.pieces[:, real].sum(1)
        self.loads[:, source] -= moved
        self.loads[:, target] += moved
        self.group[real] = target
