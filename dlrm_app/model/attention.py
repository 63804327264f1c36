"""Lists pooled by attention: the more an element is like the row's target, the more it counts.

The unit of DIN (Zhou et al. 2018, arXiv:1706.06978, section 4.3): an MLP over h, t, h - t and h ∘ t gives the weight of
an element h for the target t. Here its layers are ReLUs, and with ``softmax`` a row's weights add up to 1. An empty
list is pooled to zeros. The elements of all lists are stored one after another, so nothing is padded.

Shapes: B batch rows, V elements of a list in all rows, D a table's width, K models of an ensemble, C = D / K columns
of each.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F
from torchrec.distributed.types import LazyAwaitable
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from dlrm_app.tables.bags import meta_bags, meta_vectors, to_bag_config, torch_name
from dlrm_app.tables.table import Table

Vectors = Mapping[str, JaggedTensor]
"""Feature → the vectors of its ids, with the number of ids in each row."""


def make_bags(tables: Sequence[Table], num_models: int = 1) -> "EmbeddingBagCollection | MixedBags":
    """Makes ``tables`` on the meta device, an EmbeddingBagCollection if all of them just add up a row's vectors.

    ``num_models``: the models of an ensemble, each with its own columns and its own unit. Units are drawn on the CPU.
    """
    if not any(table.attention or table.weighted for table in tables):
        return meta_bags(tables)
    return MixedBags(tables, num_models)


class MixedBags(nn.Module):
    """Looks like an EmbeddingBagCollection of ``tables``, of which some pool their lists by attention or by weights.

    Tables with weighted features have a collection of their own, so that the ids of the others travel without weights
    and are looked up by the faster operators.
    """

    def __init__(self, tables: Sequence[Table], num_models: int) -> None:
        super().__init__()
        plain = [table for table in tables if not table.attention and not table.weighted]
        weighted = [table for table in tables if table.weighted]
        attentive = [table for table in tables if table.attention is not None]
        self.bags = meta_bags(plain) if plain else None
        self.weighted_bags = meta_bags(weighted, is_weighted=True) if weighted else None
        self.vectors = nn.ModuleDict({torch_name(table.name): meta_vectors(table) for table in attentive})
        self.pooling = AttentivePooling(attentive, num_models)
        self._configs = [to_bag_config(table) for table in tables]

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """torchrec's descriptions of all tables, in their order."""
        return self._configs

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """The pooled vectors of all features, those of attentive tables last; or an awaitable of them."""
        pooled = [bags(features) for bags in (self.bags, self.weighted_bags) if bags is not None]
        vectors = {name: table(features) for name, table in self.vectors.items()}
        combined: KeyedTensor = self.pooling(pooled, vectors)
        return combined


class AttentivePooling(nn.Module):
    """Adds the pooled vectors of ``tables``, if any, to those that are pooled already.

    It holds no table, so that the pipelines trace it as one node.
    """

    def __init__(self, tables: Sequence[Table], num_models: int) -> None:
        super().__init__()
        self._tables = list(tables)
        self.units = nn.ModuleDict(
            {torch_name(table.name): _make_units(table, num_models) for table in tables}
        )

    def forward(self, pooled: Sequence[Any], vectors: Mapping[str, Any]) -> Any:
        """``pooled``, of the other tables, with the pooled ``vectors``: table → feature → vectors.

        If the inputs are awaitables, the result is one too.
        """
        if any(isinstance(each, LazyAwaitable) for each in (*pooled, *vectors.values())):
            return _PendingVectors(self, pooled, vectors)
        return self.combine(pooled, vectors)

    def combine(self, pooled: Sequence[KeyedTensor], vectors: Mapping[str, Vectors]) -> KeyedTensor:
        """``pooled``, followed by the pooled vectors of all features in ``vectors``."""
        keys = list(chain.from_iterable(part.keys() for part in pooled))
        widths = list(chain.from_iterable(part.length_per_key() for part in pooled))
        parts = [part.values() for part in pooled]
        for table in self._tables:
            of_features = self.pool(table, vectors[torch_name(table.name)])
            keys += table.features
            widths += [table.dim] * len(table.features)
            parts += of_features
        return KeyedTensor(keys, widths, torch.cat(parts, dim=1), key_dim=1)

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


class _PendingVectors(LazyAwaitable[KeyedTensor]):
    def __init__(self, pooling: AttentivePooling, pooled: Sequence[Any], vectors: Mapping[str, Any]) -> None:
        super().__init__()
        self._pooling, self._pooled, self._vectors = pooling, pooled, vectors

    def _wait_impl(self) -> KeyedTensor:
        vectors = {name: _arrived(each) for name, each in self._vectors.items()}
        return self._pooling.combine([_arrived(each) for each in self._pooled], vectors)


def _arrived(value: Any) -> Any:
    return value.wait() if isinstance(value, LazyAwaitable) else value


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
