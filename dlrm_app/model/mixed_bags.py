"""The output of a model's sparse part: a vector for each feature, whether it is a sum of a table's rows, a list
pooled by attention or by weights, or the projection of a vector that the model does not train.

An architecture sees all of them as the features of one EmbeddingBagCollection. Shapes: B batch rows, V vectors of a
row, W the numbers of all these, S those of one, D the width that they are projected to.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F
from torchrec.distributed.types import LazyAwaitable
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.attention import AttentivePooling
from dlrm_app.tables.bags import meta_bags, meta_vectors, to_bag_config, torch_name
from dlrm_app.tables.table import Table, features_of

Rows: TypeAlias = "KeyedJaggedTensor | tuple[KeyedJaggedTensor, torch.Tensor]"
"""The ids of features, and for a model with vectors in each row these, [B, W]."""


class Projections(nn.Module):
    """[B, W], vectors side by side → [B, V · D]: each divided by its length, if ``norm`` is l2, and put through its own
    linear layer. Zeros, which stand for a missing vector, stay zeros: the layer gives its bias.
    """

    def __init__(self, sizes: Mapping[str, int], dim: int, norm: str | None) -> None:
        super().__init__()
        self._sizes, self._norm = [*sizes.values()], norm
        self.layers = nn.ModuleDict({torch_name(name): nn.Linear(size, dim) for name, size in sizes.items()})

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        parts = torch.split(vectors, self._sizes, dim=1)
        projected = []
        for number, layer in enumerate(self.layers.values()):
            part = F.normalize(parts[number]) if self._norm == "l2" else parts[number]
            projected.append(layer(part))
        return torch.cat(projected, dim=1)


def make_bags(spec: ModelSpec, num_models: int = 1) -> "EmbeddingBagCollection | MixedBags":
    """Makes the tables of ``spec`` on the meta device, an EmbeddingBagCollection if all of them just add up a row's
    vectors. What is learnt beside tables is drawn on the CPU.

    ``num_models``: the models of an ensemble, each with its own columns, its own attention and its own projections.
    """
    if not spec.vectors and not any(t.attention or t.weighted or t.is_frozen for t in spec.tables):
        return meta_bags(spec.tables)
    return MixedBags(spec, num_models)


class MixedBags(nn.Module):
    """Looks like an EmbeddingBagCollection of ``spec.given_tables``.

    Tables with weighted features have a collection of their own, so that the ids of the others travel without weights
    and are looked up by the faster operators. So have frozen tables, whose vectors get no gradient: nothing is computed
    or exchanged for them in a backward pass.
    """

    def __init__(self, spec: ModelSpec, num_models: int) -> None:
        super().__init__()
        tables = spec.tables
        plain = [t for t in tables if not (t.attention or t.weighted or t.is_frozen)]
        weighted = [table for table in tables if table.weighted]
        attentive = [table for table in tables if table.attention is not None]
        self.bags = meta_bags(plain) if plain else None
        self.weighted_bags = meta_bags(weighted, is_weighted=True) if weighted else None
        self.frozen_bags = meta_bags(spec.looked_up) if spec.looked_up else None
        self.vectors = nn.ModuleDict({torch_name(table.name): meta_vectors(table) for table in attentive})
        self.combination = Combination(spec, attentive, num_models)
        self._has_vectors = bool(spec.vectors)
        self._configs = [to_bag_config(table) for table in spec.given_tables]

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """torchrec's descriptions of all that it gives, in the order in which an architecture reads it."""
        return self._configs

    def forward(self, features: Rows) -> KeyedTensor:
        """The pooled vectors of all features, and projected ones; or an awaitable of them."""
        ids, vectors = features if self._has_vectors else (features, None)
        pooled = [bags(ids) for bags in (self.bags, self.weighted_bags) if bags is not None]
        lists = {name: table(ids) for name, table in self.vectors.items()}
        frozen = self.frozen_bags(ids) if self.frozen_bags is not None else None
        combined: KeyedTensor = self.combination(pooled, lists, frozen, vectors)
        return combined


class Combination(nn.Module):
    """Puts together what the sparse part gives. It holds no table, so that the pipelines trace it as one node."""

    def __init__(self, spec: ModelSpec, attentive: Sequence[Table], num_models: int) -> None:
        super().__init__()
        self._given = {name: table.dim for table in spec.given_tables for name in table.features}
        self._looked_up = features_of(spec.looked_up)
        self._projected = [*self._looked_up, *spec.vectors]
        self.attention = AttentivePooling(attentive, num_models)
        sizes = {name: table.dim for table in spec.looked_up for name in table.features} | {**spec.vectors}
        self.projections = Projections(sizes, spec.projected_dim, spec.config.vectors.norm) if sizes else None

    def forward(
        self, pooled: Sequence[Any], lists: Mapping[str, Any], frozen: Any, vectors: torch.Tensor | None
    ) -> Any:
        """``pooled`` by tables, with the ``lists`` that attention pools (table → feature → vectors), and projected:
        what
        ``frozen`` tables have pooled, if any, and ``vectors`` [B, W] of each row. If inputs are awaitables, the result
        is one too.
        """
        if any(isinstance(each, LazyAwaitable) for each in (*pooled, *lists.values(), frozen)):
            return _Pending(self, pooled, lists, frozen, vectors)
        return self.combine(pooled, lists, frozen, vectors)

    def combine(
        self,
        pooled: Sequence[KeyedTensor],
        lists: Mapping[str, Any],
        frozen: KeyedTensor | None,
        vectors: torch.Tensor | None,
    ) -> KeyedTensor:
        """Like ``forward``, of what has arrived."""
        attended = self.attention(lists)
        keys = [*chain.from_iterable(part.keys() for part in pooled), *attended]
        parts = [*(part.values() for part in pooled), *attended.values()]
        if self.projections is not None:
            keys += self._projected
            parts.append(self.projections(self._to_project(frozen, vectors)))
        return KeyedTensor(keys, [self._given[name] for name in keys], torch.cat(parts, dim=1), key_dim=1)

    def _to_project(self, frozen: KeyedTensor | None, vectors: torch.Tensor | None) -> torch.Tensor:
        """[B, W]: what frozen tables have pooled, which gets no gradient, then the ``vectors`` of each row."""
        by_name = {} if frozen is None else frozen.to_dict()
        parts = [by_name[name].detach() for name in self._looked_up]
        return torch.cat(parts if vectors is None else [*parts, vectors], dim=1)


class _Pending(LazyAwaitable[KeyedTensor]):
    def __init__(
        self,
        combination: Combination,
        pooled: Sequence[Any],
        lists: Mapping[str, Any],
        frozen: Any,
        vectors: torch.Tensor | None,
    ) -> None:
        super().__init__()
        self._combination, self._pooled, self._lists = combination, pooled, lists
        self._frozen, self._vectors = frozen, vectors

    def _wait_impl(self) -> KeyedTensor:
        lists = {name: _arrived(each) for name, each in self._lists.items()}
        pooled = [_arrived(each) for each in self._pooled]
        return self._combination.combine(pooled, lists, _arrived(self._frozen), self._vectors)


def _arrived(value: Any) -> Any:
    return value.wait() if isinstance(value, LazyAwaitable) else value


class SplitVectors:
    """A hook before a model's forward: takes the vectors of the rows from behind the ``num_dense`` dense features, and
    hands them to the sparse part with the ids.
    """

    def __init__(self, num_dense: int) -> None:
        self._num_dense = num_dense

    def __call__(self, model: nn.Module, inputs: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        dense, ids = inputs
        return dense[:, : self._num_dense], (ids, dense[:, self._num_dense :])
