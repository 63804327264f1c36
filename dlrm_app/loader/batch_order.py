"""The order of rows and the rows of each batch: pure arithmetic, no I/O.

A split is a list of row groups. Training concatenates the groups in the epoch's order and cuts that sequence
of N rows into L lanes of ``steps * p`` rows, where p = B / L and steps = N // B for a global batch of B rows.
Global batch t takes rows [t * p, (t + 1) * p) of every lane, in the order of the lanes. Rank r of R serves
lanes [r * L / R, (r + 1) * L / R): its local batch is the r-th piece of the global one, so every R gives the
same global batches, and a rank reads only the row groups of its own lanes.

Evaluation has one lane per rank, unshuffled, which ends where the rank's rows end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.errors import Problem
from dlrm_app.text import count

USUAL_LANES = 64
GROUP_ORDER, ROW_ORDER, IMPORTANCE = 0, 1, 2
"""Purposes of a permutation; different purposes must not share random numbers."""


class Piece(NamedTuple):
    """Rows [``start``, ``stop``) of row group ``group``, in the epoch's order of the group's rows."""

    group: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Order:
    """The rows that one rank reads in one epoch.

    ``groups[i]`` is the row group at index i of the epoch's sequence, which holds the sequence's rows
    [``starts[i]``, ``starts[i + 1]``). Lane k is its rows [``firsts[k]``, ``ends[k]``); every step takes
    ``rows_per_lane`` rows of each. ``shuffle_key`` is (seed, epoch), or None for the order of the files.
    """

    groups: NDArray[np.int64]
    starts: NDArray[np.int64]
    firsts: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows_per_lane: int
    num_steps: int
    shuffle_key: tuple[int, int] | None = None

    @property
    def batch_size(self) -> int:
        """Rows per step of this rank, padding included."""
        return self.rows_per_lane * len(self.firsts)

    def pieces(self, step: int) -> list[Piece]:
        """The rows of this rank's batch number ``step``; an evaluation may end with fewer rows than a batch."""
        return [Piece(*piece) for piece in self.piece_array(step, 1)[:, :3].tolist()]

    def piece_array(self, step: int, num_steps: int) -> NDArray[np.int64]:
        """The rows of ``num_steps`` batches, lane by lane, as [P, 4]: group, start, stop and ``before`` of each piece.

        ``before``: the number of rows that its lane gives to these batches before the piece.
        """
        firsts = self._rest_of_lanes(step)
        stops = np.minimum(firsts + num_steps * self.rows_per_lane, self.ends)
        lanes, indices, starts, stops = self._cut(firsts, stops)
        first = self.starts[indices]
        return np.stack([self.groups[indices], starts - first, stops - first, starts - firsts[lanes]], axis=1)

    def groups_by_need(self, start_step: int = 0, num_steps: int = 1) -> list[int]:
        """The row groups that the steps from ``start_step`` on need, in the order of need.

        ``num_steps`` steps are read together.
        """
        rest = self._rest_of_lanes(start_step)
        lanes, indices, firsts, _ = self._cut(rest, self.ends)
        times = (firsts - rest[lanes]) // (self.rows_per_lane * num_steps)
        by_need = np.lexsort((indices, lanes, times))
        return list(dict.fromkeys(self.groups[indices[by_need]].tolist()))

    def last_steps(self) -> dict[int, int]:
        """Row group → the last step that needs it, for every group that this rank needs."""
        lanes, indices, _, ends = self._cut(self.firsts, self.ends)
        steps = (ends - 1 - self.firsts[lanes]) // self.rows_per_lane
        by_step = np.argsort(steps, kind="stable")
        return dict(zip(self.groups[indices[by_step]].tolist(), steps[by_step].tolist(), strict=True))

    def _rest_of_lanes(self, step: int) -> NDArray[np.int64]:
        """The first row of the sequence that each lane reads at ``step``."""
        return np.minimum(self.firsts + step * self.rows_per_lane, self.ends)

    def _cut(
        self, firsts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Cuts the ranges [firsts[i], ends[i]) of the sequence's rows where row groups end.

        Returns for each piece its range i, the index of its row group in the sequence, its first row and its end.
        """
        low = np.searchsorted(self.starts, firsts, side="right") - 1
        high = np.searchsorted(self.starts, ends, side="left")
        counts = np.where(firsts < ends, high - low, 0)
        ranges = np.repeat(np.arange(len(counts)), counts)
        indices = np.arange(len(ranges)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        firsts = np.maximum(firsts[ranges], self.starts[indices])
        ends = np.minimum(ends[ranges], self.starts[indices + 1])
        has_rows = firsts < ends  # an empty row group has no piece
        return ranges[has_rows], indices[has_rows], firsts[has_rows], ends[has_rows]

    def row_order(self, group: int, rows: int) -> NDArray[np.int64] | None:
        """The order in which the epoch reads the ``rows`` rows of ``group``; None: the file's order."""
        if self.shuffle_key is None:
            return None
        return permutation(rows, *self.shuffle_key, ROW_ORDER, group)


def train_order(
    group_rows: Sequence[int],
    *,
    global_batch_size: int,
    lanes: int,
    seed: int,
    epoch: int,
    rank: int = 0,
    world_size: int = 1,
    shuffle: bool = True,
) -> Order:
    """The training rows of ``rank`` in ``epoch``. ``group_rows``: the number of rows of every row group of the split.

    The last N % global_batch_size rows of the epoch's sequence are left out; each epoch leaves out other rows.
    The arguments must pass ``check_lanes``.
    """
    groups = np.arange(len(group_rows))
    if shuffle:
        groups = permutation(len(groups), seed, epoch, GROUP_ORDER)
    starts = _starts([group_rows[group] for group in groups.tolist()])
    steps, rows_per_lane = int(starts[-1]) // global_batch_size, global_batch_size // lanes
    span = steps * rows_per_lane
    firsts = span * np.arange(rank * lanes // world_size, (rank + 1) * lanes // world_size)
    return Order(
        groups, starts, firsts, firsts + span, rows_per_lane, steps, (seed, epoch) if shuffle else None
    )


@dataclass(frozen=True)
class BatchPlan:
    """The training batches of ``rank`` in ``epoch``, from batch number ``start_batch`` on.

    With ``ensemble_size`` K above 1 a batch is K pieces, one for each model, and piece k has its own order: that of
    epoch ``epoch`` · K + k. Every piece holds this rank's share of ``global_batch_size`` rows. Rows after the last
    whole global batch of the epoch's sequence are left out. The values must pass ``check_lanes``.
    """

    global_batch_size: int
    lanes: int = USUAL_LANES
    seed: int = 0
    epoch: int = 0
    ensemble_size: int = 1
    start_batch: int = 0
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True

    def orders(self, group_rows: Sequence[int]) -> list[Order]:
        """The order of each piece's rows. ``group_rows``: the number of rows of every row group of the split."""
        return [
            train_order(
                group_rows,
                global_batch_size=self.global_batch_size,
                lanes=self.lanes,
                seed=self.seed,
                epoch=self.epoch * self.ensemble_size + piece,
                rank=self.rank,
                world_size=self.world_size,
                shuffle=self.shuffle,
            )
            for piece in range(self.ensemble_size)
        ]


def eval_order(group_rows: Sequence[int], *, batch_size: int, rank: int, world_size: int) -> Order:
    """The rows of ``rank`` in an evaluation: a contiguous share; shares differ by at most one row.

    Every rank takes the same number of steps; the last may have fewer than ``batch_size`` rows, or none.
    """
    starts = _starts(group_rows)
    total = int(starts[-1])
    first, end = (np.array([place * total // world_size]) for place in (rank, rank + 1))
    largest_share = -(-total // world_size)
    num_steps = -(-largest_share // batch_size)
    return Order(np.arange(len(group_rows)), starts, first, end, batch_size, num_steps)


def permutation(size: int, seed: int, epoch: int, purpose: int, group: int = 0) -> NDArray[np.int64]:
    """A random order of range(``size``): a pure function of its arguments, the same in every version of numpy.

    Sorts the words of Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed
    by (seed, epoch), in the part of its counter given by (purpose, group). The low bits of each word carry
    its index, so the words are distinct and every sorting algorithm gives the same order.
    """
    # imported here: checks of a configuration use this module and must not wait for numba
    from dlrm_app.loader.rows import sort_random

    key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, group, purpose], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(size)
    mask = np.uint64((1 << size.bit_length()) - 1)
    words &= ~mask
    words |= np.arange(size, dtype=np.uint64)
    num_bits = max(1, size.bit_length() - 1)  # about one word per bucket
    ordered: NDArray[np.uint64] = sort_random(words, num_bits)
    return (ordered & mask).astype(np.int64)


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *sizes], dtype=np.int64)


def enough_lanes(world_size: int) -> int:
    """The least multiple of ``world_size`` that is at least USUAL_LANES."""
    return -(-USUAL_LANES // world_size) * world_size


def check_lanes(global_batch_size: int, lanes: int, world_size: int, rows: int) -> list[Problem]:
    """Reasons why ``rows`` training rows cannot be divided in this way, each with its cure."""
    problems: list[Problem] = []
    if rows < global_batch_size:  # the suggested size fits the lanes too
        smaller = rows // lanes * lanes or "a larger dataset"
        rule = f"must be at most the {count(rows, 'row')} of the train split"
        problems.append(Problem("trainer.global_batch_size", rule, f"use {smaller}", global_batch_size))
    elif global_batch_size % lanes:
        below = global_batch_size // lanes * lanes
        choices = f"{below} or {below + lanes}" if below else f"{lanes}"
        rule = f"must be a multiple of data.lanes ({lanes})"
        problems.append(Problem("trainer.global_batch_size", rule, f"use {choices}", global_batch_size))
    if lanes % world_size:
        nearest = max(1, round(lanes / world_size)) * world_size
        cure = (
            f"use a number of ranks that divides it, or data.lanes={nearest} and a "
            "trainer.global_batch_size that is a multiple of it"
        )
        problems.append(Problem(f"data.lanes={lanes}", f"is not a multiple of the {world_size} ranks", cure))
    return problems
