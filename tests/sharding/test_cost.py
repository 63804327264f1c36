"""What a sharding option is taken to cost."""

from dataclasses import replace

import pytest

from dlrm_app.sharding.cost import estimate_options
from tests.sharding.clusters import cluster, one_hot, workload


@pytest.mark.parametrize("dim", [16, 32, 64, 128])
@pytest.mark.parametrize("ids", [1.0, 10.0, 100.0])
def test_on_cpu_a_table_cut_by_rows_is_no_less_work_than_a_whole_one(dim: int, ids: float) -> None:
    """The same rows are read, and every rank makes a part of every vector."""
    table = replace(one_hot(100_000, dim), pooling_factors=(ids,))
    whole, cut = estimate_options(workload([table]), cluster(2, device="cpu"))["t"]
    assert (whole.sharding_type, cut.sharding_type) == ("table_wise", "row_wise")
    assert whole.total_time < cut.total_time
