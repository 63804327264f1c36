"""Reordering and joining decoded rows, against lists of rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.data.rows import Bags, Rows, join, reorder, reorder_bags

Row = tuple[list[float], list[int], list[list[int]], float]


@st.composite
def decoded(draw: st.DrawFn, num_dense: int = 2, num_one_hot: int = 3, num_bags: int = 2) -> Rows:
    size = draw(st.integers(0, 20))
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    bags = []
    for _ in range(num_bags):
        offsets = np.concatenate([[0], generator.integers(0, 4, size).cumsum()])
        bags.append(Bags(generator.integers(0, 9, offsets[-1]).astype(np.int32), offsets))
    return Rows(
        generator.random((size, num_dense)).astype(np.float32),
        generator.integers(0, 9, (num_one_hot, size)).astype(np.int32),
        bags,
        generator.integers(0, 2, size).astype(np.float32),
    )


def as_list(rows: Rows) -> list[Row]:
    return [
        (
            rows.dense[row].tolist(),
            rows.one_hot[:, row].tolist(),
            [bags.values[bags.offsets[row] : bags.offsets[row + 1]].tolist() for bags in rows.bags],
            float(rows.labels[row]),
        )
        for row in range(len(rows))
    ]


@given(decoded(), st.data())
def test_reordering_moves_every_row(rows: Rows, data: st.DataObject) -> None:
    """Of numbers, and of bags of any length; without an order nothing moves."""
    order = data.draw(st.permutations(range(len(rows))))
    places = np.array(order, np.int64)
    bags = [reorder_bags(bags, places) for bags in rows.bags]
    found = Rows(rows.dense[places], rows.one_hot[:, places], bags, reorder(rows.labels, places))
    assert as_list(found) == [as_list(rows)[row] for row in order]
    assert reorder(rows.labels, None) is rows.labels
    assert reorder_bags(rows.bags[0], None) is rows.bags[0]


@given(st.lists(decoded(), min_size=1, max_size=4), st.data())
def test_joining_puts_ranges_one_behind_the_other(sources: list[Rows], data: st.DataObject) -> None:
    """In the types and the layout that a batch wants."""
    ranges = []
    for rows in sources:
        start = data.draw(st.integers(0, len(rows)))
        ranges.append((rows, start, data.draw(st.integers(start, len(rows)))))
    found = join(ranges)
    assert as_list(found) == [row for rows, start, stop in ranges for row in as_list(rows)[start:stop]]
    assert [found.dense.dtype, found.one_hot.dtype, found.labels.dtype] == [np.float32, np.int32, np.float32]
    assert found.dense.flags.c_contiguous
    assert found.one_hot.flags.c_contiguous
