"""What becomes of each embedding table: how much of it has been trained, how its weights grow, what is looked up."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.loader.batch import Batch
from dlrm_app.tables.specs import Table
from dlrm_app.training.table_health.changed_rows import InitialWeights
from dlrm_app.training.table_health.lookups import LookupCounter


class TableHealth:
    """Compares the tables of a sharded model with their initial weights and counts what an evaluation looks up.

    To be made before the first step and before a checkpoint is loaded, while the weights are those of
    ``trainer.seed``: a run that goes on elsewhere then measures from the same start. Every rank calls each
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
        """Of the distinct raw values that a table's features have, the share that shares its id with another."""
        columns = [self._columns[feature] for feature in self._tables[name].features]
        known = [(c.collisions, c.distinct) for c in columns if c.collisions is not None and c.distinct]
        return sum(c for c, _ in known) / sum(d for _, d in known) if known else None
