"""Tables for serving whose lists are pooled by attention: single rows are looked up by the operator that pools.

Shapes: B batch rows, F sparse features, V ids of all features and rows, L those of one list, D a table's width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from dlrm_app.inference.sharded_tables import ShardedTables
from dlrm_app.inference.tables import QuantizedTables
from dlrm_app.model.attention import AttentivePooling, units_of
from dlrm_app.tables.table import Table, features_of


class AttentiveTables(nn.Module):
    """Like QuantizedTables, but pools as in training. ``sums`` pools all features, side by side.

    For the target of an attentive table, ``sums`` gives the target's vector. Lists are pooled by
    ``pooling``'s units.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        sums: QuantizedTables | ShardedTables,
        pooling: AttentivePooling,
        *,
        stacked: bool,
    ) -> None:
        super().__init__()
        self.sums = sums
        self.units = pooling.units
        self._tables = list(tables)
        self._widths = [table.dim for table in tables for _ in table.features]
        self._features_and_dim = (len(self._widths), tables[0].dim) if stacked else None

    def forward(self, ids: tuple[torch.Tensor, ...]) -> torch.Tensor:
        values, lengths = ids[0], ids[1]
        split = torch.split(self.sums(ids), self._widths, dim=1)
        parts = [split[place] for place in range(len(self._widths))]  # a traced tuple has no length
        ends, places = lengths.sum(1).cumsum(0), torch.arange(values.size(0), device=values.device)
        for place, target, unit in self._lists():
            is_own = (places >= ends[place] - lengths[place].sum()) & (places < ends[place])
            vectors = self.sums.rows(place, torch.masked_select(values, is_own))
            parts[place] = unit(vectors, lengths[place], parts[target])
        pooled = torch.cat(parts, 1)
        return pooled if self._features_and_dim is None else pooled.view(-1, *self._features_and_dim)

    def _lists(self) -> Iterator[tuple[int, int, nn.Module]]:
        """(its place among the features, that of its target, its unit) of each list that is pooled by attention."""
        places = {name: k for k, name in enumerate(features_of(self._tables))}
        for table in self._tables:
            if table.attention:
                for name, unit in zip(table.lists, units_of(self.units, table), strict=True):
                    yield places[name], places[table.attention.target], unit
