"""Tables for serving, and beside them the vectors of each row, projected as in training.

Shapes: B batch rows, W the numbers of a row's vectors, D a table's width.
"""

import torch
from torch import nn

from dlrm_app.inference.attentive_tables import AttentiveTables
from dlrm_app.inference.tables import QuantizedTables, ShardedTables
from dlrm_app.model.mixed_bags import Projections


class ProjectedTables(nn.Module):
    """Pools features by ``tables``, which give them side by side, and puts the projections of vectors behind them.

    ``dim``: the width of all vectors, where they are given stacked; None: side by side.
    """

    def __init__(
        self,
        tables: QuantizedTables | ShardedTables | AttentiveTables,
        projections: Projections,
        dim: int | None,
    ) -> None:
        super().__init__()
        self.tables, self.projections = tables, projections
        self._dim = dim

    def forward(self, inputs: tuple[tuple[torch.Tensor, ...], torch.Tensor]) -> torch.Tensor:
        ids, vectors = inputs
        given = torch.cat([self.tables(ids), self.projections(vectors)], dim=1)
        return given if self._dim is None else torch.unflatten(given, 1, (-1, self._dim))
