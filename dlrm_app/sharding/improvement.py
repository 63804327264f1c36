"""Local improvement: tables change places until no exchange lowers the largest load."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dlrm_app.sharding.placement import Board, Placed

MAX_EXCHANGES = 20_000
MAX_PAIR_EXCHANGES = 300
NUM_PARTNERS = 48
"""With how many of the emptiest ranks pairs are exchanged."""
TOLERANCE = 1e-9
TIME, MEMORY, HOST = range(3)


@dataclass
class Pieces:
    """P tables that may move, then one empty piece for each rank, so that a move is an exchange too."""

    names: list[str]
    rank: np.ndarray
    load: np.ndarray
    """Time, memory, host memory [3, P + ranks]."""

    def on(self, rank: int) -> np.ndarray:
        """The pieces on ``rank``, one of each kind that are alike, the empty one last."""
        own = np.flatnonzero(self.rank == rank)
        _, firsts = np.unique(self.load[:, own], axis=1, return_index=True)
        return own[np.sort(firsts)]

    def bundles_on(self, rank: int) -> np.ndarray:
        """Every one or two pieces on ``rank`` that are not alike, [K, 2]; the empty one stands for none."""
        own = np.flatnonzero(self.rank == rank)
        empty = own[-1]
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
    """Lowers the largest time, then the largest memory without raising the largest time."""
    pieces = _movable(board)
    loads = np.stack([board.time, board.device, board.host])
    limits = np.array([np.inf, board.cluster.usable, board.cluster.usable_host], dtype=float)
    state = State(pieces, loads, limits)
    _lower(TIME, state)
    limits[TIME] = loads[TIME].max() * (1 + TOLERANCE)
    _lower(MEMORY, state)
    board.time, board.device, board.host = loads
    for name, rank in zip(pieces.names, pieces.rank.tolist()[: len(pieces.names)], strict=True):
        board.placed[name] = Placed(board.placed[name].option, (rank,))


def _movable(board: Board) -> Pieces:
    """Tables that lie whole on one rank; parts of a split one stay apart from each other where they are."""
    whole = {name: p for name, p in board.placed.items() if p.option.sharding_type == "table_wise"}
    names = sorted(whole)
    num_ranks = board.cluster.num_ranks
    loads = [(p.option.time[0], p.option.device[0], p.option.host[0]) for p in map(whole.__getitem__, names)]
    rank = np.array([*(whole[name].ranks[0] for name in names), *range(num_ranks)], dtype=np.int64)
    return Pieces(names, rank, np.array([*loads, *[(0.0, 0.0, 0.0)] * num_ranks]).T)


def _lower(which: int, state: State) -> None:
    """Exchanges pieces of the fullest rank for others as long as that lowers the larger of both ranks' loads."""
    num_pairs = 0
    for _ in range(MAX_EXCHANGES):
        fullest = int(state.loads[which].argmax())
        own, others = state.pieces.on(fullest), np.arange(len(state.pieces.rank))
        if _exchange(which, fullest, own[:, None], others[:, None], state):
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
