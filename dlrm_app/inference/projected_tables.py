"""Tables for serving whose frozen vectors, and beside them the vectors of each row, are projected as in training.

Shapes: B batch rows, W the numbers of a row's vectors, D a table's width.
"""

from typing import Any

import torch
from torch import nn

from dlrm_app.inference.attentive_tables import AttentiveTables
from dlrm_app.inference.sharded_tables import ShardedTables
from dlrm_app.inference.tables import QuantizedTables
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.mixed_bags import Projections


class ProjectedTables(nn.Module):
    """Pools features by ``tables``, which give them side by side, and puts the projections of vectors in their places.

    ``stacked``: gives all vectors [B, F, D], instead of side by side.
    """

    def __init__(
        self,
        tables: QuantizedTables | ShardedTables | AttentiveTables,
        projections: Projections,
        spec: ModelSpec,
        *,
        stacked: bool,
    ) -> None:
        super().__init__()
        self.tables, self.projections = tables, projections
        features = [(table, name) for table in spec.tables for name in table.features]
        self._widths = [table.dim for table, _ in features]
        self._frozen = [place for place, (table, _) in enumerate(features) if table.is_frozen]
        self._has_vectors = bool(spec.vectors)
        self._dim = spec.projected_dim
        self._stacked = stacked

    def forward(self, inputs: Any) -> torch.Tensor:
        """The ids, or (the ids, vectors [B, W] of each row) → the vectors of all features."""
        ids, vectors = inputs if self._has_vectors else (inputs, None)
        split = torch.split(self.tables(ids), self._widths, dim=1)
        parts = [split[place] for place in range(len(self._widths))]  # a traced tuple has no length
        to_project = [parts[place] for place in self._frozen]
        to_project += [] if vectors is None else [vectors]
        projected = self.projections(torch.cat(to_project, dim=1))
        for number, place in enumerate(self._frozen):
            parts[place] = projected[:, number * self._dim : (number + 1) * self._dim]
        given = torch.cat([*parts, projected[:, len(self._frozen) * self._dim :]], dim=1)
        return torch.unflatten(given, 1, (-1, self._dim)) if self._stacked else given
