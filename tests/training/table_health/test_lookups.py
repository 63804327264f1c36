"""Counting lookups: padding, and tables with more rows than buckets."""

from collections import Counter

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.tables.specs import Table
from dlrm_app.training.table_health.lookups import MAX_BITS, LookupCounter

CPU = torch.device("cpu")


def manifest_of(columns: list[SparseColumn]) -> Manifest:
    return Manifest("test", "label", [], columns, {}, [], {})


def test_padding_is_not_counted() -> None:
    """Two of the four rows are padding: their empty bags are no missing values."""
    table = Table("t", 10, 4, ("f",))
    counter = LookupCounter([table], manifest_of([SparseColumn("f", 10, {"missing_id": 0})]), CPU)
    counter.add(
        KeyedJaggedTensor(["f"], torch.tensor([3, 0], dtype=torch.int32), lengths=torch.tensor([1, 1, 0, 0])),
        2,
    )
    found = counter.rates()["t"]
    assert found["lookups"] == 2
    assert found["missing_rate"] == 0.5


def test_without_a_batch_nothing_is_divided() -> None:
    counter = LookupCounter([Table("t", 10, 4, ("f",))], manifest_of([SparseColumn("f", 10, {})]), CPU)
    assert counter.rates()["t"] == {
        "lookups": 0,
        "missing_rate": None,
        "rare_rate": None,
        "top1_share": None,
        "top10_share": None,
    }


def test_a_table_larger_than_the_buckets_keeps_its_hot_ids_apart() -> None:
    """Hot ids among many cold ones: their shares are right to a few lookups in 65,536; missing ones exactly."""
    rows = 100 << MAX_BITS
    generator = torch.Generator().manual_seed(0)
    cold = torch.randint(2, rows, (100_000,), generator=generator)
    ids = torch.cat(
        [cold, torch.zeros(500, dtype=torch.int64), *(torch.full((1000,), i) for i in range(2, 12))]
    )
    encoding = {"missing_id": 0, "rare_id": 1}
    counter = LookupCounter(
        [Table("t", rows, 4, ("f",))], manifest_of([SparseColumn("f", rows, encoding)]), CPU
    )
    counter.add(KeyedJaggedTensor(["f"], ids, lengths=torch.ones(len(ids), dtype=torch.int64)), len(ids))
    found = counter.rates()["t"]
    exact = Counter(ids.tolist())
    top10 = sum(count for _, count in exact.most_common(10))
    assert found["missing_rate"] == 500 / len(ids)
    assert found["rare_rate"] == 0
    assert (
        top10 <= found["top10_share"] * len(ids) <= top10 + 60
    )  # each bucket holds 1.5 cold ones on average
