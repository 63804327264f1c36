"""Builds a model from its configuration, by the architecture that it names.

Shapes: B batch rows, F sparse features, N dense features.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.model.architectures import ARCHITECTURES, ModelSpec
from dlrm_app.model.dense_embedding import PeriodicEmbedding, with_polylines
from dlrm_app.model.ensemble import Ensemble
from dlrm_app.model.experts import experts_and_tops
from dlrm_app.model.labels import LabelTops
from dlrm_app.model.mixed_bags import Combination, SplitVectors, make_bags
from dlrm_app.model.problems import model_problems, model_table_problems
from dlrm_app.model.regularization import regularize
from dlrm_app.tables.bags import meta_bags
from dlrm_app.tables.table import Table


class _DrawsFrom(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws the random numbers of this thread's operators from ``generator``.

    torch's layers take no generator, and the process's own is in use where another thread trains.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and args[0].device.type != "meta":
            given = {**given, "generator": self._generator}
        return func(*args, **given)


def build_model(spec: ModelSpec, device: torch.device) -> nn.Module:
    """Builds the model with its tables on the meta device and its dense part on ``device``.

    ``forward(dense_features [B, N], sparse_features KJT of F keys)`` gives logits [B, 1], or [B, L] of L
    labels (``LabelTops``). Behind the dense features come the numbers of vectors, [B, N + W]. The dense weights
    depend on ``spec.seed`` alone: they are always drawn on the CPU. With ``ensemble_size`` above 1 training takes
    that many times the rows, see ``Ensemble``. Raises ConfigError.
    """
    refuse_if(model_problems(spec.config) or model_table_problems(spec))
    count = spec.config.ensemble_size
    with _DrawsFrom(torch.Generator().manual_seed(spec.seed)):
        if count == 1:
            model = _build(spec, spec.given_tables, make_bags(spec))
        else:
            parts = [replace(table, dim=table.dim // count) for table in spec.given_tables]
            models = [_build(spec, parts, meta_bags(parts)) for _ in range(count)]
            model = Ensemble(make_bags(spec, count), models)
    if spec.vectors:
        model.register_forward_pre_hook(SplitVectors(spec.num_dense))
    for name, module in model.named_modules():
        if isinstance(module, Combination) or (name and "." not in name and name != "sparse_arch"):
            module.to(device)
    return model


def _build(spec: ModelSpec, tables: Sequence[Table], bags: nn.Module) -> nn.Module:
    config, embedded, dim = spec.config, spec.embedded, spec.config.dense_embedding_dim or 0
    bottom, top = _ending_in(config.bottom_mlp, tables[0].dim), _ending_in(config.top_mlp, 1)
    num_inputs = spec.num_dense + len(embedded) * dim
    build = ARCHITECTURES[config.kind].build
    model = build(config, bags, num_inputs, bottom, top)
    if spec.labels:
        if not hasattr(model, "over_arch"):
            rule = "has no over_arch, of which each of several labels needs its own"
            raise ConfigError(Problem(f"model.kind={config.kind}", rule, "preprocess with one label"))
        if config.tasks == "shared":
            others = [build(config, meta_bags(tables), num_inputs, bottom, top) for _ in spec.labels[1:]]
            tops = [each.get_submodule("over_arch") for each in (model, *others)]
            model.over_arch = LabelTops(tops, spec.labels)
        else:
            experts, tops = experts_and_tops(model.get_submodule("over_arch"), config, top, len(spec.labels))
            model.over_arch = LabelTops(tops, spec.labels, experts)
    if spec.bent:
        assert config.dense_knots
        model.dense_arch = with_polylines(model.get_submodule("dense_arch"), spec.bent, config.dense_knots)
    if embedded:
        embedding = PeriodicEmbedding(spec.num_dense, embedded, dim)
        model.dense_arch = nn.Sequential(embedding, model.get_submodule("dense_arch"))
    return regularize(model, config)


def _ending_in(widths: Sequence[int], last: int) -> list[int]:
    """``widths``, with ``last`` appended unless they already end with it."""
    return [*widths] if widths and widths[-1] == last else [*widths, last]
