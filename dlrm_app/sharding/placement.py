"""Puts shards on ranks: longest first onto the least loaded rank, within everyone's memory. Then tables change places
until no exchange lowers the largest load.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.cost import KINDS, Option

EVERYWHERE = ("row_wise", "data_parallel")
ON_NODES = ("table_row_wise", "table_column_wise", "grid_shard")


@dataclass(frozen=True)
class Placed:
    """A table's option and the rank of each of its shards."""

    option: Option
    ranks: tuple[int, ...]


Assignment = Mapping[str, Placed]


@dataclass(frozen=True)
class Loads:
    """Loads of W ranks: memory in bytes by KINDS [W, 4], host bytes [W], milliseconds a step [W]."""

    memory: np.ndarray
    host: np.ndarray
    time: np.ndarray

    @property
    def device(self) -> np.ndarray:
        """Bytes in each rank's own memory [W]."""
        return self.memory.sum(1)


def rank_loads(assignment: Assignment, num_ranks: int) -> Loads:
    """The sums over all shards."""
    memory, host, time = np.zeros((num_ranks, len(KINDS))), np.zeros(num_ranks), np.zeros(num_ranks)
    for placed in assignment.values():
        ranks, option = np.array(placed.ranks), placed.option
        np.add.at(memory, ranks, option.memory)
        np.add.at(host, ranks, option.host)
        np.add.at(time, ranks, option.time)
    return Loads(memory, host, time)


def imbalance(values: np.ndarray) -> float:
    """Largest over mean: 1 is even."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean else 1.0


class Board:
    """The ranks while tables are put on them. Time and memory are compared in units of their mean over all ranks."""

    def __init__(self, choices: Sequence[tuple[str, Option]], cluster: Cluster, time_weight: float) -> None:
        self.cluster = cluster
        self.time, self.device, self.host = np.zeros((3, cluster.num_ranks))
        self.placed: dict[str, Placed] = {}
        ranks = cluster.num_ranks
        self._per_time = time_weight * ranks / (sum(option.total_time for _, option in choices) or 1)
        needed = sum(float(option.device.sum()) for _, option in choices)
        self._per_byte = (1 - time_weight) * ranks / (needed or 1)

    def weigh(self, time: np.ndarray, device: np.ndarray) -> np.ndarray:
        """One figure for a load: its time and memory in units of their means."""
        return time * self._per_time + device * self._per_byte

    def put_everywhere(self, name: str, option: Option) -> bool:
        """Shard i on rank i."""
        return self._put(name, option, np.arange(self.cluster.num_ranks))

    def put_on_nodes(self, name: str, option: Option) -> bool:
        """Groups of shards that must share a node, each on the node that ends up least loaded."""
        width = self.cluster.devices_per_node
        group = width if option.sharding_type != "table_column_wise" else len(option.time)
        ranks: list[int] = []
        extra = np.zeros((3, self.cluster.num_ranks))
        for start in range(0, len(option.time), group):
            part = slice(start, start + group)
            node = self._best_node(option, part, extra)
            if node is None:
                return False
            ranks.extend(node)
            for row, values in zip(extra, (option.time, option.device, option.host), strict=True):
                np.add.at(row, node, values[part])
        return self._put(name, option, np.array(ranks))

    def put_on_ranks(self, name: str, option: Option) -> bool:
        """Each shard on the least loaded rank with room for it, a table's shards on different ranks if there are."""
        ranks: list[int] = []
        extra = np.zeros((3, self.cluster.num_ranks))
        for shard in range(len(option.time)):
            time, device, host = self.time + extra[0], self.device + extra[1], self.host + extra[2]
            score = self.weigh(time, device)
            full = (device + option.device[shard] > self.cluster.usable) | (
                host + option.host[shard] > self.cluster.usable_host
            )
            score[full] = np.inf
            if len(ranks) < self.cluster.num_ranks:
                score[ranks] = np.inf
            rank = int(score.argmin())
            if score[rank] == np.inf:
                return False
            ranks.append(rank)
            extra[:, rank] += option.time[shard], option.device[shard], option.host[shard]
        return self._put(name, option, np.array(ranks))

    def _best_node(self, option: Option, part: slice, extra: np.ndarray) -> list[int] | None:
        cluster = self.cluster
        shape = (cluster.nodes, cluster.devices_per_node)
        time, device, host = (
            (load + more).reshape(shape)
            for load, more in zip((self.time, self.device, self.host), extra, strict=True)
        )
        order = np.tile(np.arange(shape[1]), (shape[0], 1))
        if option.sharding_type == "table_column_wise":  # its shards may lie in any order
            order = np.argsort(self.weigh(time, device), axis=1, kind="stable")
        slots = order[:, np.arange(part.stop - part.start) % shape[1]]
        added = np.zeros((3, *shape))
        rows = np.arange(shape[0])[:, None]
        for sums, values in zip(added, (option.time, option.device, option.host), strict=True):
            np.add.at(sums, (rows, slots), values[part][None, :])
        fits = ((device + added[1] <= cluster.usable) & (host + added[2] <= cluster.usable_host)).all(1)
        score = np.where(fits, self.weigh(time + added[0], device + added[1]).max(1), np.inf)
        node = int(score.argmin())
        return None if score[node] == np.inf else [int(r) for r in node * shape[1] + slots[node]]

    def _put(self, name: str, option: Option, ranks: np.ndarray) -> bool:
        np.add.at(self.time, ranks, option.time)
        np.add.at(self.device, ranks, option.device)
        np.add.at(self.host, ranks, option.host)
        self.placed[name] = Placed(option, tuple(int(rank) for rank in ranks))
        fits = (self.device <= self.cluster.usable).all() and (self.host <= self.cluster.usable_host).all()
        return bool(fits)


def place_tables(choices: Sequence[tuple[str, Option]], cluster: Cluster, time_weight: float) -> Board | None:
    """A board with all of ``choices`` on it; None if this order finds no room.

    First what lies on every rank, then what needs whole nodes, then single shards, each kind longest first
    (Graham's LPT rule). ``time_weight``: 1 to balance time alone, 0 memory alone.
    """
    board = Board(choices, cluster, time_weight)

    def length(choice: tuple[str, Option]) -> float:
        return float(board.weigh(choice[1].time, choice[1].device).max())

    ordered = sorted(choices, key=lambda choice: (-length(choice), choice[0]))
    for kinds, put in (
        (EVERYWHERE, board.put_everywhere),
        (ON_NODES, board.put_on_nodes),
        (("table_wise", "column_wise"), board.put_on_ranks),
    ):
        for name, option in ordered:
            if option.sharding_type in kinds and not put(name, option):
                return None
    return board


MAX_EXCHANGES = 20_000
MAX_PAIR_EXCHANGES = 300
NUM_PARTNERS = 48
"""Number of the emptiest ranks with which pairs are exchanged."""
TOLERANCE = 1e-9
TIME, MEMORY, HOST = range(3)


@dataclass
class Pieces:
    """P tables that may move, then one empty piece for each group of ranks (one rank, or a node), which makes a move an exchange too."""

    names: list[str]
    rank: np.ndarray
    load: np.ndarray
    """Time, memory, host memory [3, P + ranks]."""

    def on(self, rank: int) -> np.ndarray:
        """The pieces on ``rank``, one of each kind that are alike, the empty one last."""
        pieces = np.flatnonzero(self.rank == rank)
        _, firsts = np.unique(self.load[:, pieces], axis=1, return_index=True)
        return pieces[np.sort(firsts)]

    def bundles_on(self, rank: int) -> np.ndarray:
        """Every one or two pieces on ``rank`` that are not alike, [K, 2]; the empty one stands for none."""
        empty = np.flatnonzero(self.rank == rank)[-1]
        kinds = self.on(rank)
        pairs = [(empty, empty), *((piece, empty) for piece in kinds[:-1]), *combinations(kinds[:-1], 2)]
        return np.array(pairs, dtype=np.int64)


@dataclass
class State:
    """The loads of W ranks [3, W], and their limits [3]."""

    pieces: Pieces
    loads: np.ndarray
    limits: np.ndarray

    def give(self, pieces: np.ndarray, source: int, target: int) -> None:
        """Moves real ``pieces`` from one rank to another."""
        real = pieces[pieces < len(self.pieces.names)]
        moved = self.pieces.load[:, real].sum(1)
        self.loads[:, source] -= moved
        self.loads[:, target] += moved
        self.pieces.rank[real] = target


def improve(board: Board) -> None:
    """Lowers the largest time, then the largest memory without raising the largest time.

    First tables that take a whole node each change nodes, then tables that take one rank change ranks; parts of
    column-wise tables stay apart from each other where they are.
    """
    if board.cluster.nodes > 1:
        _improve(board, "table_row_wise", board.cluster.devices_per_node)
    _improve(board, "table_wise", 1)


def _improve(board: Board, kind: str, width: int) -> None:
    """Moves tables of ``kind`` among groups of ``width`` ranks, each group as loaded as its fullest rank."""
    moved = {name: placed for name, placed in board.placed.items() if placed.option.sharding_type == kind}
    num_groups = board.cluster.num_ranks // width
    before = np.stack([board.time, board.device, board.host])
    limits = np.array([np.inf, board.cluster.usable, board.cluster.usable_host], dtype=float)
    pieces = _pieces(moved, num_groups, width)
    state = State(pieces, before.reshape(3, num_groups, width).max(2), limits)
    _lower(TIME, state)
    limits[TIME] = state.loads[TIME].max() * (1 + TOLERANCE)
    _lower(MEMORY, state)
    for name, group in zip(pieces.names, pieces.rank.tolist()[: len(pieces.names)], strict=True):
        ranks = tuple(range(group * width, (group + 1) * width))
        board.placed[name] = Placed(moved[name].option, ranks)
    loads = rank_loads(board.placed, board.cluster.num_ranks)
    after = np.stack([loads.time, loads.device, loads.host])
    if width > 1 and (after.max(1) > np.maximum(before.max(1), limits) * (1 + TOLERANCE)).any():
        board.placed.update(moved)  # shards of one table differ, and sums of the largest misled
        after = before
    board.time, board.device, board.host = after


def _pieces(moved: Mapping[str, Placed], num_groups: int, width: int) -> Pieces:
    names = sorted(moved)
    options = [moved[name].option for name in names]
    loads = [(option.time.max(), option.device.max(), option.host.max()) for option in options]
    rank = [*(moved[name].ranks[0] // width for name in names), *range(num_groups)]
    empty = [(0.0, 0.0, 0.0)] * num_groups
    return Pieces(names, np.array(rank, dtype=np.int64), np.array([*loads, *empty]).T)


def _lower(which: int, state: State) -> None:
    """Exchanges pieces of the fullest rank for others as long as that lowers the larger of both ranks' loads."""
    num_pairs = 0
    for _ in range(MAX_EXCHANGES):
        fullest = int(state.loads[which].argmax())
        here, others = state.pieces.on(fullest), np.arange(len(state.pieces.rank))
        if _exchange(which, fullest, here[:, None], others[:, None], state):
            continue
        if num_pairs == MAX_PAIR_EXCHANGES:
            return
        num_pairs += 1
        emptiest = np.argsort(state.loads[which], kind="stable")[:NUM_PARTNERS]
        bundles = [state.pieces.bundles_on(int(rank)) for rank in emptiest if rank != fullest]
        if not bundles:
            return
        if not _exchange(which, fullest, state.pieces.bundles_on(fullest), np.concatenate(bundles), state):
            return


def _exchange(which: int, fullest: int, given: np.ndarray, taken: np.ndarray, state: State) -> bool:
    """Makes the exchange that lowers load ``which`` most, if there is one; bundles are [K, pieces in each]."""
    partner = state.pieces.rank[taken[:, 0]]
    give = state.pieces.load[:, given].sum(2)
    take = state.pieces.load[:, taken].sum(2)
    change = give[which][:, None] - take[which][None, :]
    here, there = state.loads[which, fullest] - change, state.loads[which, partner][None, :] + change
    peak = np.maximum(here, there)
    peak[:, partner == fullest] = np.inf
    for load in {TIME, MEMORY, HOST} - {which}:
        delta = give[load][:, None] - take[load][None, :]
        too_much = (state.loads[load, fullest] - delta > state.limits[load]) & (delta < 0)
        too_much |= (state.loads[load, partner][None, :] + delta > state.limits[load]) & (delta > 0)
        peak[too_much] = np.inf
    best = int(peak.argmin())
    row, column = divmod(best, peak.shape[1])
    if not peak[row, column] < state.loads[which, fullest] * (1 - TOLERANCE):
        return False
    other = int(partner[column])
    state.give(given[row], fullest, other)
    state.give(taken[column], other, fullest)
    return True
