"""Lists pooled by attention: the more an element is like the row's target, the more it counts.

The unit of DIN (Zhou et al. 2018, arXiv:1706.06978, section 4.3): an MLP over h, t, h - t and h ∘ t gives the weight of
an element h for the target t. Here its layers are ReLUs, and with ``softmax`` a row's weights add up to 1. An empty
list is pooled to zeros. The elements of all lists are stored one after another, so nothing is padded.

Shapes: B batch rows, V elements of a list in all rows, D a table's width, K models of an ensemble, C = D / K columns
of each.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F
from torchrec.sparse.jagged_tensor import JaggedTensor

from dlrm_app.tables.bags import torch_name
from dlrm_app.tables.table import Table

Vectors = Mapping[str, JaggedTensor]
"""Feature → the vectors of its ids, with the number of ids in each row."""


class AttentivePooling(nn.Module):
    """Pools the vectors of attentive ``tables``."""

    def __init__(self, tables: Sequence[Table], num_models: int) -> None:
        super().__init__()
        self._tables = list(tables)
        self.units = nn.ModuleDict(
            {torch_name(table.name): _make_units(table, num_models) for table in tables}
        )

    def forward(self, vectors: Mapping[str, Vectors]) -> dict[str, torch.Tensor]:
        """Table → feature → vectors: feature → its pooled vectors [B, D]."""
        pooled: dict[str, torch.Tensor] = {}
        for table in self._tables:
            of_features = self.pool(table, vectors[torch_name(table.name)])
            pooled |= zip(table.features, of_features, strict=True)
        return pooled

    def pool(self, table: Table, vectors: Vectors) -> list[torch.Tensor]:
        """The pooled vectors [B, D] of each feature of ``table``, in its order."""
        assert table.attention is not None
        name, target = table.attention.target, self._one_a_row(vectors[table.attention.target])
        pooled = {name: target}
        for feature, unit in zip(table.lists, units_of(self.units, table), strict=True):
            history = vectors[feature]
            pooled[feature] = unit(history.values(), history.lengths(), target)
        return [pooled[feature] for feature in table.features]

    def _one_a_row(self, vectors: JaggedTensor) -> torch.Tensor:
        """The vectors of a feature with at most one id a row, [B, D]; zeros for a row of padding, which has none."""
        values, lengths = vectors.values(), vectors.lengths()
        if len(values) == len(lengths):
            return values
        return Lists(lengths, len(values), self.training).sum(values)


def _make_units(table: Table, num_models: int) -> nn.ModuleList:
    rule = table.attention
    assert rule is not None
    return nn.ModuleList(Attend(table.dim, rule.hidden, rule.softmax, num_models) for _ in table.lists)


def units_of(units: nn.ModuleDict, table: Table) -> list[nn.Module]:
    """The units of the lists of ``table``, in their order, of an AttentivePooling's ``units``."""
    return [*units[torch_name(table.name)].children()]


class Attend(nn.Module):
    """Pools a list by attention: K units, of which unit k reads and pools columns [k · C, (k + 1) · C)."""

    def __init__(self, dim: int, hidden: Sequence[int], softmax: bool, num_models: int) -> None:
        super().__init__()
        self._softmax = softmax
        self._width = dim // num_models
        # a softmax does not depend on a number that all elements share
        self.units = nn.ModuleList(
            AttentionUnit(self._width, hidden, bias=not softmax) for _ in range(num_models)
        )

    def forward(self, vectors: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The elements' ``vectors`` [V, D], ``lengths`` [B] of the rows' lists, ``target`` [B, D] → [B, D]."""
        lists = Lists(lengths, vectors.size(0), self.training)
        pooled = []
        for number, unit in enumerate(self.units):
            columns = slice(number * self._width, (number + 1) * self._width)
            own = vectors[:, columns]
            weights = unit(own, target[:, columns], lists).float()
            if self._softmax:
                weights = lists.softmax(weights)
            pooled.append(lists.sum(own * weights.unsqueeze(1)))
        return torch.cat(pooled, 1) if len(pooled) > 1 else pooled[0]


class AttentionUnit(nn.Module):
    """The MLP that weighs an element h for its row's target t, over (h, t, h - t, h ∘ t)."""

    def __init__(self, width: int, hidden: Sequence[int], *, bias: bool) -> None:
        super().__init__()
        widths = [4 * width, *hidden]
        layers = [nn.Linear(*pair) for pair in zip(widths, hidden, strict=False)]
        last = nn.Linear(widths[-1], 1, bias=bias)
        if bias:
            nn.init.ones_(last.bias)  # begins near the sum: with weights near 0 nothing would learn
        self.layers = nn.ModuleList([*layers, last])

    def forward(self, vectors: torch.Tensor, target: torch.Tensor, lists: "Lists") -> torch.Tensor:
        """[V, C] and [B, C] → a number for each element, [V].

        The first layer is linear in h, t and h ∘ t: the part of t is computed once for each row, not for each element.
        """
        first, *others = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        of_vector, of_target, of_difference, of_product = first.weight.chunk(4, 1)
        values = F.linear(vectors, of_vector + of_difference)
        values = values + F.linear(vectors * lists.spread(target), of_product)
        values = values + lists.spread(F.linear(target, of_target - of_difference, first.bias))
        for layer in others:
            values = layer(values.relu())
        return values.squeeze(1)


class Lists:
    """The lists of B rows with V elements together: ``row`` [V] of each element, sums over rows' elements and more.

    ``trains``: spread is the gradient of sum, and sum that of spread, so each computes the other's, which is fast.
    """

    def __init__(self, lengths: torch.Tensor, num_elements: int, trains: bool) -> None:
        lengths = lengths.long()
        self._trains = trains
        self._num_rows = lengths.size(0)
        rows = torch.arange(self._num_rows, device=lengths.device)
        self._elements = torch.arange(num_elements, device=lengths.device)
        self._offsets = F.pad(lengths.cumsum(0), (1, 0))
        self.row = torch.repeat_interleave(rows, lengths, output_size=num_elements)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """The row's values for each of its elements, [B, …] → [V, …]."""
        if not self._trains:
            return values.index_select(0, self.row)
        spread: torch.Tensor = _Spread.apply(values, self)  # type: ignore[no-untyped-call]
        return spread

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sums over each row's elements, [V, …] → [B, …]."""
        if not self._trains:
            return self.plain_sum(values)
        sums: torch.Tensor = _Sum.apply(values, self)  # type: ignore[no-untyped-call]
        return sums

    def plain_sum(self, values: torch.Tensor) -> torch.Tensor:
        """``sum`` as a pooled lookup of consecutive rows: 20 times as fast as index_add on CPU, always in one order."""
        # TorchScript does not take the default norm_type, an integer
        return F.embedding_bag(
            self._elements, values, self._offsets, norm_type=2.0, mode="sum", include_last_offset=True
        )

    def softmax(self, values: torch.Tensor) -> torch.Tensor:
        """The softmax over each row's elements, float32 [V] → [V]."""
        largest = values.detach().new_full((self._num_rows,), torch.finfo(torch.float32).min)
        largest = largest.scatter_reduce(0, self.row, values.detach(), "amax")
        powers = (values - largest.index_select(0, self.row)).exp().unsqueeze(1)
        return (powers / self.spread(self.sum(powers))).squeeze(1)


class _Sum(torch.autograd.Function):
    """The gradient of a sum is spread over its elements."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: torch.Tensor, lists: Lists) -> torch.Tensor:
        ctx.lists = lists  # type: ignore[attr-defined]
        return lists.plain_sum(values)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.index_select(0, ctx.lists.row), None  # type: ignore[attr-defined]


class _Spread(torch.autograd.Function):
    """The gradients of a row's elements are summed."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: torch.Tensor, lists: Lists) -> torch.Tensor:
        ctx.lists = lists  # type: ignore[attr-defined]
        return values.index_select(0, lists.row)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.lists.plain_sum(gradient.contiguous()), None  # type: ignore[attr-defined]
