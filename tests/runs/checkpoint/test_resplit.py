"""Numbers by row and shard of columns follow a table that is cut into other shards."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.runs.checkpoint.resplit import resplit, shares

WIDTH = 24
BOUNDS = st.sets(st.integers(1, WIDTH - 1)).map(lambda inner: sorted({0, WIDTH, *inner}))


def numbers(bounds: list[int], seed: int) -> dict[int, torch.Tensor]:
    drawn = torch.rand(len(bounds) - 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return dict(enumerate(drawn))


@given(BOUNDS, BOUNDS, st.integers(0, 100))
def test_the_sum_over_columns_is_kept(before: list[int], after: list[int], seed: int) -> None:
    """Each column has its shard's number: written out by columns, then averaged over the new shards."""
    values = numbers(before, seed)
    columns = torch.stack([values[sum(low <= c for low in before) - 1] for c in range(WIDTH)])
    expected = [columns[first:end].mean(0) for first, end in pairwise(after)]
    assert torch.allclose(torch.stack(resplit(values, before, after)), torch.stack(expected), atol=1e-12)


@given(BOUNDS, st.integers(0, 100))
def test_the_same_shards_keep_their_numbers_to_the_bit(bounds: list[int], seed: int) -> None:
    values = numbers(bounds, seed)
    assert all(torch.equal(now, values[number]) for number, now in enumerate(resplit(values, bounds, bounds)))


@given(BOUNDS, st.integers(0, WIDTH - 1), st.integers(1, WIDTH))
def test_shares_are_of_the_shards_that_overlap(before: list[int], first: int, end: int) -> None:
    if first < end:
        found = shares(before, first, end)
        assert sum(found.values()) == 1.0 or abs(sum(found.values()) - 1) < 1e-12
        assert [*found] == [n for n, (a, b) in enumerate(pairwise(before)) if a < end and b > first]
