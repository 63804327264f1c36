"""The registry of architectures: what each one is built by, and what it requires.

Does not import torch until a model is built.

Built-in architectures stand in a table here; others are registered by the decorator ``architecture`` on their builder,
in a file of their own (docs/extending.md).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dlrm_app.config.train import ModelConfig
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.errors import Problem
from dlrm_app.model.axes import Axes, Names
from dlrm_app.tables.table import Table

if TYPE_CHECKING:
    from torch import nn
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    Builder = Callable[[ModelConfig, EmbeddingBagCollection, int, list[int], list[int]], nn.Module]
NameAxes = Callable[[ModelConfig, Mapping[str, int], Names], dict[str, Axes]]
ENTRY_POINTS = "dlrm_app.architectures"
"""The entry points in which other packages name their architectures: the name, and the builder or its module."""


@dataclass(frozen=True)
class Architecture:
    """An architecture and its requirements.

    build: (configuration, tables, number of dense inputs N, widths of the bottom MLP, widths of the top MLP)
    → model. The model's ``forward(dense_features [B, N], sparse_features KJT)`` gives logits [B, 1]. Its
    tables are in ``sparse_arch``, and it reads dense inputs through ``dense_arch``: with
    ``dense_embedding_dim`` the features' embeddings are put before it. Its top MLP is ``over_arch``, of which
    every one of several labels has its own.
    needs, refuses: keys of ``model`` that it requires, and keys that it does not have.
    interacts: the features' vectors interact, so they and the dense features' vector must have one width, and
    ``sparse_arch`` gives them stacked, [B, F, D]; otherwise it gives them side by side, [B, W].
    needs_dense: a dataset without dense columns is refused, as the bottom MLP would have no input.
    branch_loss: the name in ``dlrm_app.model.branches.BRANCH_LOSSES`` of the loss that it adds. In training its logits
    are then [B, 1 + S], the score's and those of S branches; in evaluation [B, 1] as ever.
    takes_experts: its top MLP is a torchrec ``OverArch`` over one tensor [B, W], before which several labels may have
    experts.
    name_axes: (configuration, sparse feature → width of its vector, dense inputs) → parameter → the names along its
    axes, for the parameters whose shape depends on the features. A warm start with other features keeps what has a
    name, and draws other parameters again.
    rules: further problems of a model of it.
    """

    build: "Builder"
    needs: Sequence[str] = ()
    refuses: Sequence[str] = ("stride",)
    interacts: bool = True
    needs_dense: bool = True
    branch_loss: str | None = None
    takes_experts: bool = False
    name_axes: NameAxes = lambda config, widths, dense: {}
    rules: "Callable[[ModelSpec], Iterator[Problem]]" = lambda spec: iter(())
    origin: str | None = None
    """The checksum of the file of ``plugins`` that has registered it; None for others."""


ARCHITECTURES: dict[str, Architecture] = {}
"""model.kind → architecture; those of entry points once they are asked for."""


def architecture(name: str, **requirements: Any) -> "Callable[[Builder], Builder]":
    """Registers the decorated builder as ``model.kind=<name>``; the keywords are the fields of ``Architecture``.

    A name that is registered again, as when a notebook's cell runs twice, gets the new builder; built-in
    names cannot be taken.
    """

    def register(build: "Builder") -> "Builder":
        if name in _BUILT_IN:
            raise ValueError(
                f"the architecture {name} is built in: choose another name than {', '.join(_BUILT_IN)}"
            )
        ARCHITECTURES[name] = Architecture(build, **requirements, origin=_origin.get())
        return build

    return register


@contextmanager
def registering(origin: str) -> Iterator[None]:
    """Records ``origin`` in the architectures that are registered in the block."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


_origin: ContextVar[str | None] = ContextVar("origin", default=None)
_BUILT_IN: tuple[str, ...] = ()
_FINALNET = ("finalnet_mlp2", "finalnet_dropout2", "finalnet_gates", "finalnet_relu")
_DCNV3 = ("dcnv3_num_linear_layers", "dcnv3_linear_dropout", "dcnv3_layer_norm")
_SPECIAL = ("stride", "settings", "num_heads", *_FINALNET, *_DCNV3, "qnn_num_rows", "dense_knots")
"""Keys that a built-in architecture has only if it says so."""


def _all_but(*keys: str) -> tuple[str, ...]:
    return (*(key for key in _SPECIAL if key not in keys),)


def _built_in(place: str) -> Callable[..., Any]:
    """The function at ``place``, MODULE:FUNCTION in this folder, whose module is imported by its first call."""
    return lambda *arguments: resolve_name(f"{__package__}.{place}")(*arguments)


def _halves_are_whole(spec: "ModelSpec") -> Iterator[Problem]:
    """Half of what a factorized interaction gives are products with the other half."""
    for key, widths in (("top_mlp", spec.config.top_mlp[:-1]), ("finalnet_mlp2", spec.config.finalnet_mlp2)):
        if any(width % 2 for width in widths or ()):
            yield Problem(
                f"model.{key}", "needs even widths with model.kind=finalnet", "such as [400,400]", widths
            )


def _heads_divide(spec: "ModelSpec", parts: int = 1) -> Iterator[Problem]:
    """Each head reads an equal share of every vector, in ``parts`` equal parts."""
    heads, members = spec.config.num_heads or 1, spec.config.ensemble_size
    for dim in sorted({table.dim for table in spec.given_tables}):
        if dim % (heads * parts * members):
            count = heads * parts * members
            rule = f"needs tables whose width is a multiple of {count}, and there is one of {dim}"
            step = math.lcm(count, 4)  # fbgemm's widths are multiples of 4
            yield Problem(f"model.num_heads={heads}", rule, f"use a width of {-(-dim // step) * step}")


_NO_BOTTOM = ("bottom_mlp", "dcn_low_rank_dim", "bottom_dropout")
_NO_MLP = (*_NO_BOTTOM, "top_mlp")
ARCHITECTURES |= {
    "dlrm": Architecture(
        _built_in("dlrm:build_dlrm"),
        refuses=_all_but(),
        takes_experts=True,
        name_axes=_built_in("dlrm:name_axes_of_dlrm"),
    ),
    "dcn": Architecture(
        _built_in("dlrm:build_dcn"),
        ("dcn_num_layers", "dcn_low_rank_dim"),
        _all_but(),
        takes_experts=True,
        name_axes=_built_in("dlrm:name_axes_of_dcn"),
    ),
    "dcn_parallel": Architecture(
        _built_in("dcn_parallel:build"),
        ("dcn_num_layers",),
        (*_all_but("dense_knots"), *_NO_BOTTOM),
        needs_dense=False,
        name_axes=_built_in("dcn_parallel:name_axes"),
    ),
    "projection": Architecture(
        _built_in("dlrm:build_projection"),
        ("projection_branch1", "projection_branch2"),
        _all_but(),
        takes_experts=True,
        name_axes=_built_in("dlrm:name_axes_of_projection"),
    ),
    "concat": Architecture(
        _built_in("concat:build"),
        refuses=(*_all_but("stride"), "bottom_mlp"),
        interacts=False,
        takes_experts=True,
        name_axes=_built_in("concat:name_axes"),
    ),
    "gdcn": Architecture(
        _built_in("gdcn:build"),
        ("dcn_num_layers",),
        (*_all_but("dense_knots"), *_NO_BOTTOM),
        needs_dense=False,
        name_axes=_built_in("gdcn:name_axes"),
    ),
    "gdcn_parallel": Architecture(
        _built_in("gdcn:build_parallel"),
        ("dcn_num_layers",),
        (*_all_but("dense_knots"), *_NO_BOTTOM),
        needs_dense=False,
        name_axes=_built_in("gdcn:name_axes_of_parallel"),
    ),
    "finalnet": Architecture(
        _built_in("finalnet:build"),
        (),
        (*_all_but("dense_knots", *_FINALNET), *_NO_BOTTOM),
        needs_dense=False,
        branch_loss="self_distillation",
        name_axes=_built_in("finalnet:name_axes"),
        rules=_halves_are_whole,
    ),
    "dcnv3": Architecture(
        _built_in("dcnv3:build"),
        ("dcn_num_layers", "dcnv3_num_linear_layers"),
        (*_all_but("dense_knots", "num_heads", *_DCNV3), *_NO_MLP),
        needs_dense=False,
        branch_loss="tri_bce",
        name_axes=_built_in("dcnv3:name_axes"),
        rules=partial(_heads_divide, parts=2),
    ),
    "qnn": Architecture(
        _built_in("qnn:build"),
        ("dcn_num_layers", "qnn_num_rows"),
        (*_all_but("dense_knots", "num_heads", "qnn_num_rows"), *_NO_MLP),
        needs_dense=False,
        branch_loss="self_distillation",
        name_axes=_built_in("qnn:name_axes"),
        rules=_heads_divide,
    ),
}
_BUILT_IN = (*ARCHITECTURES,)


def find_architecture(kind: str) -> Architecture | None:
    """The architecture ``kind``: a registered one, or one that an installed package names in ``ENTRY_POINTS``."""
    if kind not in ARCHITECTURES:
        for point in entry_points(group=ENTRY_POINTS, name=kind):
            found = point.load()
            if kind not in ARCHITECTURES:  # a builder without the decorator
                architecture(kind)(found)
    return ARCHITECTURES.get(kind)


@dataclass(frozen=True)
class ModelSpec:
    """Everything that a model is built from. ``seed``: the seed of all initial weights, those of tables included.

    ``numbers``: the dense features that model.dense_embedding_dim and model.dense_knots are for; None: all.
    ``labels``: of rows with several, the main one first.
    ``vectors``: column → the numbers of its vectors, one of each in a row.
    """

    config: ModelConfig
    tables: Sequence[Table]
    num_dense: int
    seed: int = 0
    numbers: Sequence[int] | None = None
    labels: Sequence[LearntLabel] = ()
    vectors: Mapping[str, int] = field(default_factory=dict)

    @property
    def projected_dim(self) -> int:
        """The width that vectors are projected to: model.vectors.project, or that of the tables, the widest of several."""
        trained = [table.dim for table in self.tables if not table.is_frozen]
        return self.config.vectors.project or max(trained, default=0)

    @property
    def given_tables(self) -> list[Table]:
        """The tables as an architecture sees them: frozen ones have the projected width, and each vector of a row has
        a table.
        """
        dim = self.projected_dim
        tables = [replace(table, dim=dim) if table.is_frozen else table for table in self.tables]
        return tables + [Table(name, 1, dim, (name,)) for name in self.vectors]

    @property
    def looked_up(self) -> list[Table]:
        """The tables that are frozen."""
        return [table for table in self.tables if table.is_frozen]

    @property
    def branch_loss(self) -> str | None:
        """The name of the loss that the architecture adds in training."""
        found = find_architecture(self.config.kind)
        return found.branch_loss if found else None

    @property
    def embedded(self) -> Sequence[int]:
        """The dense features with embeddings."""
        return self._numbers if self.config.dense_embedding_dim else ()

    @property
    def bent(self) -> Sequence[int]:
        """The dense features with polylines."""
        return self._numbers if self.config.dense_knots else ()

    @property
    def _numbers(self) -> Sequence[int]:
        return range(self.num_dense) if self.numbers is None else self.numbers
