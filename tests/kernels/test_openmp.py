"""Kernels on torch's own threads: every row is dealt to one thread, by whatever number of them."""

import pytest
import torch

from dlrm_app.kernels import openmp


@openmp.kernel
def count_threads(arguments: openmp.Arguments) -> None:
    rows = openmp.sizes(arguments, 1)[0]
    first, last = openmp.share(rows)
    seen = openmp.carray(arguments[1], rows)
    for row in range(first, last):
        seen[row] += last - first


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_each_row_goes_to_one_thread_and_shares_are_equal(threads: int, rows: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seen = torch.zeros(rows)
        openmp.run(count_threads, [rows], [seen])
    finally:
        torch.set_num_threads(before)
    assert set(seen.tolist()) <= {rows // threads, -(-rows // threads)}
    assert seen.min() >= 1
