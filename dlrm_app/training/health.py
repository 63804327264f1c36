"""What becomes of each embedding table: how much of it has been trained, how its weights grow, what is looked up."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from dlrm_app.data.batch import Batch
from dlrm_app.data.manifest import Manifest
from dlrm_app.model.init import local_parts, table_weights
from dlrm_app.tables import Table
from dlrm_app.training.collectives import own_rank, total
from dlrm_app.training.lookups import LookupCounter

CHUNK = 1 << 22
"""Weights widened to float32 at a time."""


class TableHealth:
    """Compares the tables of a sharded model with their first weights and counts what an evaluation looks up.

    To be made before the first step and before a checkpoint is loaded, while the weights are those of
    ``trainer.seed``: a run that goes on elsewhere then measures from the same start. Keeps 4 bytes for each row
    on the device of the weights. Every rank calls each method; only sums are exchanged.
    """

    def __init__(
        self, model: nn.Module, tables: Sequence[Table], manifest: Manifest, device: torch.device
    ) -> None:
        self._model = model
        self._tables = {table.name: table for table in tables}
        self._columns = {column.name: column for column in manifest.sparse}
        self._device = device
        self._lookups = LookupCounter(tables, manifest, device)
        self._first_rows = list(self._squared_rows())
        self._first_norms = {name: norm for name, (norm, _) in self._norms_and_changes().items()}

    def start_split(self) -> None:
        """To be called before the first batch of an evaluation."""
        self._lookups.reset()

    def see(self, batch: Batch) -> None:
        """Counts the ids of one evaluated ``batch``, on the device."""
        self._lookups.add(batch.sparse_features, batch.num_valid)

    def measure(self) -> dict[str, dict[str, float | None]]:
        """By table, the values of a health event, explained in docs/watching.md; the same on every rank."""
        rates = self._lookups.rates()
        return {
            name: {
                "rows": self._tables[name].rows,
                "rows_touched": changed / self._tables[name].rows,
                "weight_norm": norm,
                "norm_growth": norm / first if (first := self._first_norms[name]) else None,
                **rates[name],
                "collision_rate": self._collision_rate(name),
            }
            for name, (norm, changed) in self._norms_and_changes().items()
        }

    def _collision_rate(self, name: str) -> float | None:
        """Of the distinct raw values that a table's features have, the share that shares its id with another."""
        columns = [self._columns[feature] for feature in self._tables[name].features]
        known = [(c.collisions, c.distinct) for c in columns if c.collisions is not None and c.distinct]
        return sum(c for c, _ in known) / sum(d for _, d in known) if known else None

    def _norms_and_changes(self) -> dict[str, tuple[float, int]]:
        """By table: the Frobenius norm of its weights, and how many rows are not what they were at first."""
        places = {name: place for place, name in enumerate(self._tables)}
        sums = torch.zeros(len(places), 2, dtype=torch.float64, device=self._device)
        for (name, column, now), (_, _, first) in zip(self._squared_rows(), self._first_rows, strict=True):
            changed = (now != first).sum() if column == 0 else 0  # a row cut into columns counts once
            sums[places[name], 0] += now.sum(dtype=torch.float64)
            sums[places[name], 1] += changed
        found = total(sums).tolist()
        return {name: (math.sqrt(found[place][0]), int(found[place][1])) for name, place in places.items()}

    @torch.no_grad()
    def _squared_rows(self) -> Iterator[tuple[str, int, torch.Tensor]]:
        """(table, first column, [rows] float32 squared norm of each row) of every part that this rank answers for."""
        for name, weight in table_weights(self._model.state_dict(), self._tables):
            if not isinstance(weight, ShardedTensor) and own_rank() > 0:
                continue  # a copy of what every rank holds
            for part, _, column in local_parts(weight):
                rows = torch.split(part.detach(), max(1, CHUNK // max(1, part.shape[1])))
                yield name, column, torch.cat([some.float().square().sum(1) for some in rows])
