"""Tables for servers that have torch alone, without fbgemm: fp32 rows, pooled by torch's own operator.

Shapes: B batch rows, F sparse features, V ids of all features and rows, D a table's width, R the rows of tables of
one width, W the widths of all features' vectors added up.
"""

import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.inference.tables import QuantizedTables


class PlainTables(nn.Module):
    """Like QuantizedTables, whose fp32 and fp16 rows it takes as fp32."""

    first_rows: torch.Tensor

    def __init__(self, quantized: QuantizedTables) -> None:
        super().__init__()
        tables = quantized.tables
        features = [table for table in tables for _ in table.features]
        rows = quantized.float_rows()
        widths = sorted({table.dim for table in features})
        self._groups = [
            [place for place, table in enumerate(features) if table.dim == width] for width in widths
        ]
        """The places of the features whose vectors have one width."""
        self._group_of = [widths.index(table.dim) for table in features]
        self._means = {place for place, table in enumerate(features) if table.pooling == "mean"}
        firsts: dict[str, int] = {}
        of_widths = []
        for width in widths:
            names = [table.name for table in tables if table.dim == width and table.features]
            sizes = [len(rows[name]) for name in names]
            firsts |= dict(zip(names, [sum(sizes[:number]) for number in range(len(sizes))], strict=True))
            of_widths.append(torch.cat([rows[name] for name in names]) if len(names) > 1 else rows[names[0]])
        self.rows_of_widths = nn.ParameterList(nn.Parameter(each, requires_grad=False) for each in of_widths)
        self.register_buffer("first_rows", torch.tensor([firsts[table.name] for table in features]))
        self._features_and_dim = (len(features), tables[0].dim) if quantized.stacked else None

    def forward(self, ids: tuple[torch.Tensor, ...]) -> torch.Tensor:
        values, lengths, *weights = ids
        counts = lengths.sum(1)
        places = torch.arange(lengths.size(0)).repeat_interleave(counts, output_size=values.size(0))
        rows = values + self.first_rows[places]
        parts = [rows] * lengths.size(0)  # replaced below
        for group, table in zip(self._groups, self.rows_of_widths, strict=True):
            own_rows, own_lengths, own_weights = rows, lengths, weights
            if len(self._groups) > 1:
                of_group = torch.isin(places, torch.tensor(group)).nonzero().squeeze(1)
                own_rows, own_lengths = rows[of_group], lengths[group]
                own_weights = [each[of_group] for each in weights]
            ends = F.pad(own_lengths.reshape(-1).cumsum(0), (1, 0))
            sums = F.embedding_bag(
                own_rows,
                table,
                ends,
                mode="sum",
                per_sample_weights=next(iter(own_weights), None),
                include_last_offset=True,
            )
            for number, place in enumerate(group):
                pooled = sums.view(len(group), -1, table.size(1))[number]
                divisor = lengths[place].clamp(min=1).to(torch.float32)[:, None]
                parts[place] = pooled / divisor if place in self._means else pooled
        together = torch.cat(parts, 1)
        return together if self._features_and_dim is None else together.view(-1, *self._features_and_dim)

    def rows(self, feature: int, values: torch.Tensor) -> torch.Tensor:
        """The rows [V, D] of ids [V] of the feature at place ``feature``."""
        return F.embedding(values + self.first_rows[feature], self.rows_of_widths[self._group_of[feature]])
