"""Health of each embedding table: how much of it has been trained, how its weights grow, what is looked up."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.distributed.collectives import all_reduce_sum, current_rank, sum_in_rank_order
from dlrm_app.loader.batch import Batch
from dlrm_app.model.initial_weights import local_parts, table_weights
from dlrm_app.tables.specs import Table


class TableHealth:
    """Compares the tables of a sharded model with their initial weights and counts what an evaluation looks up.

    To be made before the first step and before a checkpoint is loaded, while the weights are those of
    ``trainer.seed``: a run that is resumed elsewhere then measures from the same start. Every rank calls each
    method; only sums are exchanged.
    """

    def __init__(
        self, model: nn.Module, tables: Sequence[Table], manifest: Manifest, device: torch.device
    ) -> None:
        self._tables = {table.name: table for table in tables}
        self._columns = {column.name: column for column in manifest.sparse}
        self._lookups = LookupCounter(tables, manifest, device)
        self._initial_weights = InitialWeights(model, tables, device)
        self._initial_norms = {name: norm for name, (norm, _) in self._initial_weights.compare().items()}

    def start_split(self) -> Callable[[Batch], None]:
        """Begins with an evaluation; gives what counts the ids of each of its batches, on the device."""
        self._lookups.reset()
        return lambda batch: self._lookups.add(batch.sparse_features, batch.num_valid)

    def measure(self) -> dict[str, dict[str, float | None]]:
        """By table, the values of a health event, explained in docs/how-to/watching.md; the same on every rank."""
        rates = self._lookups.rates()
        return {
            name: {
                "rows": self._tables[name].rows,
                "rows_touched": changed / self._tables[name].rows,
                "weight_norm": norm,
                "norm_growth": norm / initial if (initial := self._initial_norms[name]) else None,
                **rates[name],
                "collision_rate": self._collision_rate(name),
            }
            for name, (norm, changed) in self._initial_weights.compare().items()
        }

    def _collision_rate(self, name: str) -> float | None:
        """Share of the distinct raw values of a table's features that share their id with another value."""
        columns = [self._columns[feature] for feature in self._tables[name].features]
        known = [(c.collisions, c.distinct) for c in columns if c.collisions is not None and c.distinct]
        return sum(c for c, _ in known) / sum(d for _, d in known) if known else None


CHUNK = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Weights looked at at a time: on CPU what fits its caches, on a GPU few enough kernels for 80 GB of them."""


class InitialWeights:
    """Remembers a hash of every row of a sharded model's tables, 4 bytes in host memory, of which GPUs have too little.

    That tells changed rows whatever the optimizer keeps, SGD's nothing included. Every rank makes one and calls
    ``compare``; only sums are exchanged.
    """

    def __init__(self, model: nn.Module, tables: Sequence[Table], device: torch.device) -> None:
        self._model = model
        self._tables = {table.name: table for table in tables}
        self._device = device
        self._hashes = [
            hash_chunks(chunks) if counts_rows else None for _, counts_rows, chunks in self._parts()
        ]

    @torch.no_grad()
    def compare(self) -> dict[str, tuple[float, int]]:
        """By table: the Frobenius norm of its weights now, and how many rows are not what they were."""
        index = {name: number for number, name in enumerate(self._tables)}
        sums = torch.zeros(len(index), 2, dtype=torch.float64, device=self._device)
        for (name, _, chunks), hashes in zip(self._parts(), self._hashes, strict=True):
            start, table_sums = 0, sums[index[name]]
            for rows in chunks:
                table_sums[0] += torch.linalg.vector_norm(rows.float()).double() ** 2
                if hashes is not None:
                    before = hashes[start : start + len(rows)].to(rows.device)
                    table_sums[1] += (hash_rows(rows) != before).sum()
                start += len(rows)
        totals = sum_in_rank_order(sums).tolist()
        return {
            name: (math.sqrt(squares), int(changed))
            for name, (squares, changed) in zip(index, totals, strict=True)
        }

    def _parts(self) -> Iterator[tuple[str, bool, Sequence[torch.Tensor]]]:
        """(table, whether its rows count here, chunks of rows) of all that this rank answers for.

        Every rank holds a copy of a data-parallel table: the first one answers. A row cut into columns counts
        where its first columns lie.
        """
        for name, weight in table_weights(self._model.state_dict(), self._tables):
            if isinstance(weight, ShardedTensor) or current_rank() == 0:
                for part, _, column in local_parts(weight):
                    rows = max(1, CHUNK[part.device.type] // part.shape[1])
                    yield name, column == 0, torch.split(part.detach(), rows)


def hash_chunks(chunks: Sequence[torch.Tensor]) -> torch.Tensor:
    """``hash_rows`` of all rows of at least one chunk, one after another, in host memory."""
    # into one tensor made beforehand: many small ones would lie behind the work space of each chunk, where malloc
    # may then find no room for the next one's, and memory grow by as much as the table
    hashes = torch.empty(sum(map(len, chunks)), dtype=torch.int32)
    for part, rows in zip(torch.split(hashes, [len(rows) for rows in chunks]), chunks, strict=True):
        part.copy_(hash_rows(rows))
    return hashes


def hash_rows(rows: torch.Tensor) -> torch.Tensor:
    """[n] int32 of the bits of ``rows`` [n, columns]: a changed weight always changes it, several nearly always.

    Weights times odd numbers, summed modulo 2^32. (A row's norm would not do: SGD's small steps drown in it.)
    """
    bits = rows.view(torch.int32 if rows.element_size() == 4 else torch.int16).to(torch.int32)
    columns = torch.arange(bits.shape[1], dtype=torch.int64, device=rows.device)
    odd = ((2 * columns + 1) * 2654435761 % (1 << 32)).to(torch.int32)  # the cast wraps around
    return (bits * odd).sum(1, dtype=torch.int32)


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
        """Each table's ``lookups`` over all ranks, and shares of them, explained in docs/how-to/watching.md.

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
