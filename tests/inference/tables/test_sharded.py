"""Tables in shards give the vectors that they give whole."""

import numpy as np
import pytest
import torch

from dlrm_app.inference.tables.quantized import QuantizedTables
from dlrm_app.inference.tables.sharded import ShardedTables
from dlrm_app.tables.specs import Table

TABLES = [
    Table("first", 40, 8, ("a",)),
    Table("second", 70, 8, ("b", "c"), pooling="mean"),
    Table("third", 30, 8, ("d",)),
]


@pytest.mark.parametrize("kind", ["int8", "int4", "int2"])
@pytest.mark.parametrize("stacked", [True, False])
def test_shards_give_what_whole_tables_give(kind: str, stacked: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}
    types = {t.name: kind for t in TABLES}
    whole = QuantizedTables(TABLES, types, lambda table: weights[table.name], stacked=stacked)
    sharded = ShardedTables(TABLES, types, lambda table: weights[table.name], 2, stacked=stacked)
    assert set(sharded.shard_of.values()) == {0, 1}
    chance = np.random.default_rng(0)
    lengths = chance.integers(0, 4, (4, 9))
    rows = [40, 70, 70, 30]
    values = np.concatenate([chance.integers(0, rows[f], lengths[f].sum()) for f in range(4)])
    ids = torch.from_numpy(values.astype(np.int32)), torch.from_numpy(lengths.astype(np.int32))
    torch.testing.assert_close(sharded(ids), whole(ids), rtol=0, atol=1e-6)
