"""Local improvement: tables change places until no exchange lowers the largest load."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dlrm_app.sharding.planner.placement import Board, Placed, rank_loads

MAX_EXCHANGES = 20_000
MAX_PAIR_EXCHANGES = 300
NUM_PARTNERS = 48
"""With how many of the emptiest ranks pairs are exchanged."""
TOLERANCE = 1e-9
TIME, MEMORY, HOST = range(3)


@dataclass
class Pieces:
    """P tables that may move, then one empty piece for each group of ranks (one rank, or a node), so that a move is an exchange too."""

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
    """The loads of W ranks [3, W], and what they may not exceed [3]."""

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
        board.placed.update(moved)  # shards of one table differed, so that sums of the largest misled
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
