"""Laws of the order of rows."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.errors import Problem
from dlrm_app.loader.batch_order import (
    GROUP_ORDER,
    ROW_ORDER,
    Order,
    Piece,
    check_lanes,
    enough_lanes,
    eval_order,
    permutation,
    train_order,
)

Row = tuple[int, int]
"""(row group, place in the group)."""

group_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=12)
seeds = st.integers(0, 2**64 - 1)


def rows_of(pieces: Iterable[Piece]) -> list[Row]:
    return [(piece.group, row) for piece in pieces for row in range(piece.start, piece.stop)]


def all_rows(order: Order) -> list[Row]:
    return [row for step in range(order.num_steps) for row in rows_of(order.pieces(step))]


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, int]:
    """Lanes, a global batch size that they divide, and ranks that divide them."""
    lanes = draw(st.integers(1, 12))
    world_size = draw(st.sampled_from([n for n in range(1, lanes + 1) if lanes % n == 0]))
    batch_size = lanes * draw(st.integers(1, 4))
    return {"lanes": lanes, "world_size": world_size, "global_batch_size": batch_size}


@given(st.integers(1, 5000))
def test_lanes_fit_any_ranks_and_are_64_where_that_fits(ranks: int) -> None:
    lanes = enough_lanes(ranks)
    assert lanes % ranks == 0
    assert 64 <= lanes < max(64, ranks) + ranks
    assert (lanes == 64) == (64 % ranks == 0)


@given(group_sizes, layouts(), seeds, st.integers(0, 100), st.booleans())
def test_any_number_of_ranks_gives_the_same_global_batches(
    sizes: list[int], layout: dict[str, int], seed: int, epoch: int, shuffle: bool
) -> None:
    """The ranks' local batches, one behind the other, are the batch of a single rank."""
    world_size = layout.pop("world_size")
    common = {**layout, "seed": seed, "epoch": epoch, "shuffle": shuffle}
    alone = train_order(sizes, **common)
    ranks = [train_order(sizes, **common, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in range(alone.num_steps):
        together = [row for order in ranks for row in rows_of(order.pieces(step))]
        assert together == rows_of(alone.pieces(step))
        assert all(len(rows_of(order.pieces(step))) == order.batch_size for order in ranks)
    assert {order.num_steps for order in ranks} == {alone.num_steps}


@given(group_sizes, layouts(), seeds, st.booleans())
def test_an_epoch_reads_every_row_once_but_fewer_than_a_batch(
    sizes: list[int], layout: dict[str, int], seed: int, shuffle: bool
) -> None:
    """No row twice, none from outside; those left out are the last of the sequence."""
    del layout["world_size"]
    order = train_order(sizes, **layout, seed=seed, epoch=0, shuffle=shuffle)
    read = all_rows(order)
    sequence = [(group, row) for group in order.groups for row in range(sizes[group])]
    assert sorted(read) == sorted(sequence[: len(read)])
    assert 0 <= len(sequence) - len(read) < layout["global_batch_size"]


@given(group_sizes, layouts())
def test_without_shuffling_a_lane_is_a_span_of_the_files(sizes: list[int], layout: dict[str, int]) -> None:
    """Against the definition, written out over a list of all rows."""
    del layout["world_size"]
    order = train_order(sizes, **layout, seed=0, epoch=0, shuffle=False)
    sequence = [(group, row) for group, size in enumerate(sizes) for row in range(size)]
    lanes, per_lane = layout["lanes"], layout["global_batch_size"] // layout["lanes"]
    steps = len(sequence) // layout["global_batch_size"]
    assert order.num_steps == steps
    for step in range(steps):
        starts = [lane * steps * per_lane + step * per_lane for lane in range(lanes)]
        expected = [row for start in starts for row in sequence[start : start + per_lane]]
        assert rows_of(order.pieces(step)) == expected
    assert order.row_order(0, sizes[0]) is None


def test_a_rank_without_rows_needs_no_row_group() -> None:
    """Also where its share would begin in the middle of one."""
    for rank in range(11):
        order = eval_order([4], batch_size=11, rank=rank, world_size=11)
        assert order.last_steps() == ({0: 0} if order.pieces(0) else {})


@given(group_sizes, layouts(), seeds, st.data())
def test_a_row_group_is_done_with_after_its_last_step(
    sizes: list[int], layout: dict[str, int], seed: int, data: st.DataObject
) -> None:
    """Against every piece of every step."""
    rank = data.draw(st.integers(0, layout["world_size"] - 1))
    for order in (
        train_order(sizes, **layout, seed=seed, epoch=3, rank=rank),
        eval_order(sizes, batch_size=layout["global_batch_size"], rank=rank, world_size=layout["world_size"]),
    ):
        expected = {piece.group: step for step in range(order.num_steps) for piece in order.pieces(step)}
        assert order.last_steps() == expected


@given(group_sizes, layouts(), seeds, st.integers(1, 5), st.data())
def test_row_groups_come_in_the_order_of_need(
    sizes: list[int], layout: dict[str, int], seed: int, num_steps: int, data: st.DataObject
) -> None:
    """Against the pieces of every lot of steps, from any step on; a lot's pieces are those of its steps."""
    rank = data.draw(st.integers(0, layout["world_size"] - 1))
    for order in (
        train_order(sizes, **layout, seed=seed, epoch=3, rank=rank),
        eval_order(sizes, batch_size=layout["global_batch_size"], rank=rank, world_size=layout["world_size"]),
    ):
        start = data.draw(st.integers(0, order.num_steps))
        needed: dict[int, None] = {}
        for first in range(start, order.num_steps, num_steps):
            pieces = order.piece_array(first, num_steps).tolist()
            needed |= dict.fromkeys(group for group, *_ in pieces)
            for step in range(first, min(first + num_steps, order.num_steps)):
                of_step = [
                    (group, row)
                    for group, begin, end, before in pieces
                    for row in range(begin, end)
                    if (before + row - begin) // order.rows_per_lane == step - first
                ]
                assert of_step == rows_of(order.pieces(step))
        assert order.groups_by_need(start, num_steps) == list(needed)


@given(group_sizes, st.integers(1, 9), st.integers(1, 30))
def test_an_evaluation_reads_every_row_once(sizes: list[int], world_size: int, batch_size: int) -> None:
    """In the order of the files, in equal shares, in the same number of steps on every rank."""
    ranks = [
        eval_order(sizes, batch_size=batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    shares = [all_rows(order) for order in ranks]
    assert [row for share in shares for row in share] == [
        (group, row) for group, size in enumerate(sizes) for row in range(size)
    ]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert {order.num_steps for order in ranks} == {-(-max(map(len, shares)) // batch_size)}
    assert all(
        len(rows_of(order.pieces(step))) <= batch_size for order in ranks for step in range(order.num_steps)
    )


def philox(key: list[int], counter: list[int]) -> list[int]:
    """Four words of Philox4x64-10, from the paper (Salmon et al. 2011), in Python's own integers."""
    mask = 2**64 - 1
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [c0, c1, c2, c3]


@given(st.integers(1, 50), seeds, seeds, st.integers(0, 2**32))
def test_a_permutation_follows_the_published_generator(size: int, seed: int, epoch: int, group: int) -> None:
    """Places sorted by the high bits of Philox words; numpy counts from 1."""
    words = [word for block in range(1, 14) for word in philox([seed, epoch], [block, 0, group, ROW_ORDER])]
    shift = size.bit_length()
    expected = sorted(range(size), key=lambda place: (words[place] >> shift, place))
    assert permutation(size, seed, epoch, ROW_ORDER, group).tolist() == expected


def test_the_order_of_an_epoch_never_changes_between_versions() -> None:
    """A resumed run must see the batches that it would have seen: these numbers are for ever."""
    assert permutation(10, 1, 2, GROUP_ORDER).tolist() == [4, 2, 0, 6, 1, 5, 9, 8, 7, 3]
    assert permutation(10, 1, 2, ROW_ORDER, 7).tolist() == [0, 4, 2, 1, 6, 7, 8, 9, 5, 3]


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 12), st.integers(0, 400))
def test_lanes_that_pass_check_lanes_can_be_dealt(
    batch_size: int, lanes: int, world_size: int, rows: int
) -> None:
    """It refuses exactly what does not divide or is too small."""
    is_fine = batch_size % lanes == 0 and lanes % world_size == 0 and rows >= batch_size
    assert is_fine == (check_lanes(batch_size, lanes, world_size, rows) == [])


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (
            (100, 64, 1, 1000),
            [
                Problem(
                    "trainer.global_batch_size", "must be a multiple of data.lanes (64)", "use 64 or 128", 100
                )
            ],
        ),
        (
            (2048, 64, 3, 5000),
            [
                Problem(
                    "data.lanes=64",
                    "is not a multiple of the 3 ranks",
                    "use a number of ranks that divides it, or data.lanes=63 and a trainer.global_batch_size that is a "
                    "multiple of it",
                )
            ],
        ),
        (
            (2048, 64, 2, 1000),
            [
                Problem(
                    "trainer.global_batch_size",
                    "must be at most the 1,000 rows of the train split",
                    "use 960",
                    2048,
                )
            ],
        ),
        (
            (2048, 64, 2, 1),
            [
                Problem(
                    "trainer.global_batch_size",
                    "must be at most the 1 row of the train split",
                    "use a larger dataset",
                    2048,
                )
            ],
        ),
    ],
)
def test_a_refusal_names_the_key_the_value_and_the_cure(
    arguments: tuple[int, ...], problems: list[Problem]
) -> None:
    """All problems at once, each with what to type."""
    assert check_lanes(*arguments) == problems
