"""How often the rows of each table are looked up over a split: missing and rare values, the hottest ids."""

from collections.abc import Sequence

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.distributed.collectives import all_reduce_sum
from dlrm_app.tables.specs import Table

MAX_BITS = 16
"""Ids of a table with at most 2^16 rows are counted one by one; those of a larger one share buckets by hash."""
MAX_COUNTERS = 1 << 22
"""Over all features: 32 MiB."""
FIRST_SHARED = 2
"""Ids below it, which stand for missing and rare values, never share a bucket."""


class LookupCounter:
    """Counts the ids of batches, on every rank those of its rows; ``rates`` adds up all ranks.

    Where a table has more rows than buckets, the shares of its hottest ids come out too large by what else fell
    into their buckets: about one lookup in 65,536 for each.
    """

    def __init__(self, tables: Sequence[Table], manifest: Manifest, device: torch.device) -> None:
        columns = {column.name: column for column in manifest.sparse}
        self._tables = list(tables)
        self._columns = [columns[name] for table in tables for name in table.features]
        # a power of two, so that a hash needs no division
        self._bits = min(MAX_BITS, (MAX_COUNTERS // len(self._columns)).bit_length() - 1)
        self._buckets = 1 << self._bits
        rows = [table.rows for table in tables for _ in table.features]
        self._is_shared = torch.tensor([size > self._buckets for size in rows], device=device)
        self._feature_indices = torch.arange(len(rows), device=device)
        self._counts = torch.zeros(len(rows) * self._buckets, dtype=torch.int64, device=device)
        self._num_rows = torch.zeros((), dtype=torch.int64, device=device)
        self._empty = torch.zeros(len(rows), dtype=torch.int64, device=device)

    def reset(self) -> None:
        """Forgets all batches."""
        for counts in (self._counts, self._num_rows, self._empty):
            counts.zero_()

    def add(self, features: KeyedJaggedTensor, num_valid: int) -> None:
        """Counts a batch whose features come in the order of the tables; rows from ``num_valid`` on are padding."""
        ids = features.values().long()
        lengths = features.lengths().view(len(self._columns), -1)
        feature = torch.repeat_interleave(self._feature_indices, lengths.sum(1), output_size=ids.numel())
        buckets = feature * self._buckets + self._bucket(ids, self._is_shared[feature])
        self._counts.scatter_add_(0, buckets, torch.ones_like(buckets))
        self._empty += (lengths[:, :num_valid] == 0).sum(1)
        self._num_rows += num_valid

    def _bucket(self, ids: torch.Tensor, is_shared: torch.Tensor) -> torch.Tensor:
        # Knuth's multiplicative hash: neighbours, which vocabularies sort by frequency, fall far apart
        hashes = ((ids * 2654435761) >> (32 - self._bits)) & (self._buckets - 1)
        return torch.where(is_shared & (ids >= FIRST_SHARED), hashes.clamp_(min=FIRST_SHARED), ids)

    def rates(self) -> dict[str, dict[str, float | None]]:
        """Of each table, over all ranks: ``lookups`` and the shares of them explained in docs/how-to/watching.md.

        Every rank must call it. None where there is nothing to divide by, or no id stands for such a value.
        """
        counts = all_reduce_sum(self._counts).view(-1, self._buckets).cpu()
        empty, num_rows = all_reduce_sum(self._empty).tolist(), int(all_reduce_sum(self._num_rows))
        rates, start = {}, 0
        for table in self._tables:
            stop = start + len(table.features)
            rates[table.name] = _table_rates(
                counts[start:stop], sum(empty[start:stop]), num_rows, self._columns[start:stop]
            )
            start = stop
        return rates


def _table_rates(
    counts: torch.Tensor, num_empty: int, num_rows: int, columns: Sequence[SparseColumn]
) -> dict[str, float | None]:
    """``counts`` [features, buckets], ``num_empty`` bags of ``num_rows`` a feature."""
    lookups = int(counts.sum())
    hottest = counts.sum(0).topk(min(10, counts.shape[1])).values
    missing, rare = (
        [
            int(counts[index, column.encoding[key]])
            for index, column in enumerate(columns)
            if key in column.encoding
        ]
        for key in ("missing_id", "rare_id")
    )
    return {
        "lookups": lookups,
        "missing_rate": _share(sum(missing) + num_empty, num_rows * len(columns)),
        "rare_rate": _share(sum(rare), lookups) if rare else None,
        "top1_share": _share(int(hottest[0]), lookups),
        "top10_share": _share(int(hottest.sum()), lookups),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
