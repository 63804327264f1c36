"""Names of the inputs of a model's dense layers, so that weights can be matched when features are added or removed.

Shapes: N dense features.
"""

import re
from collections.abc import Sequence

from dlrm_app.model.architectures import ModelSpec, find_architecture
from dlrm_app.model.axes import Axes

_TOP = "over_arch.model.0._mlp.0._linear.weight"


def named_axes(spec: ModelSpec, dense: Sequence[str]) -> dict[str, Axes]:
    """Parameter → its axes, for the dense parameters whose shape depends on the features. ``dense``: names of
    the N features.

    They are the same for each model of an ensemble.
    """
    members = spec.config.ensemble_size
    widths = {name: table.dim // members for table in spec.given_tables for name in table.features}
    embedded, dim = [dense[number] for number in spec.embedded], spec.config.dense_embedding_dim or 0
    functions = [(name, dim, place) for name in embedded for place in range(dim)]
    found = find_architecture(spec.config.kind)
    axes = found.name_axes(spec.config, widths, [*dense, *functions]) if found else {}
    axes = _before_experts(spec, axes)
    if bent := [dense[number] for number in spec.bent]:
        axes |= {"dense_arch.knots": (bent, None), "dense_arch.points": (bent, None, None)}
    if not embedded:
        return axes
    axes = {re.sub("^dense_arch", "dense_arch.1", name): names for name, names in axes.items()}
    axes |= {"dense_arch.0.mean": (dense,), "dense_arch.0.scale": (dense,)}
    axes |= {"dense_arch.0.frequencies": (embedded, None), "dense_arch.0.bias": (embedded, None)}
    return axes | {"dense_arch.0.weight": (embedded, None, None)}


def _before_experts(spec: ModelSpec, axes: dict[str, Axes]) -> dict[str, Axes]:
    """With experts, the first level's experts and gates read what the top MLP would read."""
    config, experts, num_labels = spec.config, spec.config.experts, len(spec.labels)
    read = axes.pop(_TOP, None) if config.tasks != "shared" else None
    if read is None:
        return axes
    is_ple = config.tasks == "ple"
    num_experts = experts.shared + (num_labels * (experts.own or 1) if is_ple else 0)
    num_gates = num_labels + (is_ple and (experts.levels or 1) > 1)
    level = "over_arch.experts.levels.0"
    axes |= {f"{level}.experts.{number}._mlp.0._linear.weight": read for number in range(num_experts)}
    return axes | {f"{level}.gates.{number}.weight": read for number in range(num_gates)}
