"""How far the tables have come from their initial weights: which rows have changed, and how the norm has grown."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from dlrm_app.distributed.collectives import current_rank, sum_in_rank_order
from dlrm_app.model.initial_weights import local_parts, table_weights
from dlrm_app.tables.specs import Table

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
