"""Names of the inputs of a model's dense layers, so that weights can be matched when features are added or removed.

Does not import torch. Shapes: F sparse features, N dense features, D the width of a model's vectors, W a
layer's outputs.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.architectures import ModelSpec

Names = Sequence[Hashable]
Axes = tuple[Names | None, ...]
"""Names of the positions along each axis of a weight; None: the positions have no names."""
_TOP = "over_arch.model.0._mlp.0._linear.weight"
_BOTTOM = ""
"""The name of the bottom MLP's vector; no feature has an empty name."""


def named_axes(spec: ModelSpec, dense: Sequence[str]) -> dict[str, Axes]:
    """Parameter → its axes, for the dense parameters whose shape depends on the features. ``dense``: names of
    the N features.

    They are the same for each model of an ensemble.
    """
    members = spec.config.ensemble_size
    widths = {name: table.dim // members for table in spec.given_tables for name in table.features}
    embedded, dim = [dense[number] for number in spec.embedded], spec.config.dense_embedding_dim or 0
    functions = [(name, dim, place) for name in embedded for place in range(dim)]
    axes = _before_experts(spec, _axes(spec.config, widths, [*dense, *functions]))
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


def _vectors(widths: Mapping[Any, int]) -> list[Hashable]:
    """(feature, place in its vector) for each position of concatenated vectors."""
    return [(name, place) for name, width in widths.items() for place in range(width)]


def _first_layer(mlp: str, inputs: Names) -> dict[str, Axes]:
    return {f"{mlp}._mlp.0._linear.weight": (None, inputs)}


def _axes(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """Parameter → its axes, from feature → width and the dense features.

    A kind without a case keeps no weights of such layers.
    """
    width, num_layers = next(iter(widths.values())), config.dcn_num_layers or 0
    with_bottom = {_BOTTOM: width, **widths}
    axes = _first_layer("dense_arch.model", dense)
    match config.kind:
        case "dlrm":  # the top MLP reads the bottom MLP's vector and the dot product of each pair of vectors
            pairs = [frozenset(pair) for pair in combinations(with_bottom, 2)]
            return axes | _first_layer("over_arch.model.0", [*_vectors({_BOTTOM: width}), *pairs])
        case "dcn":  # every cross layer reads and writes all vectors
            inputs = _vectors(with_bottom)
            for layer in range(num_layers):
                axes[f"inter_arch.crossnet.V_kernels.{layer}"] = (None, inputs)
                axes[f"inter_arch.crossnet.W_kernels.{layer}"] = (inputs, None)
                axes[f"inter_arch.crossnet.bias.{layer}"] = (inputs,)
            return axes | _first_layer("over_arch.model.0", inputs)
        case "projection":  # both branches read all vectors
            for branch in ("interaction_branch1", "interaction_branch2"):
                axes |= _first_layer(f"inter_arch.{branch}.model", _vectors(with_bottom))
            return axes
        case "dcn_parallel":
            # every dense feature has a vector too; the last layer reads the cross layers and the MLP
            inputs = _vectors({**dict.fromkeys(dense, width), **widths})
            axes = {"dense_arch.weight": (dense, None)}
            for layer in range(num_layers):
                axes[f"inter_arch.layers.{layer}.weight"] = (inputs, inputs)
                axes[f"inter_arch.layers.{layer}.bias"] = (inputs,)
            return axes | _parallel_head(config, inputs)
        case "gdcn" | "gdcn_parallel":
            inputs = _vectors({**dict.fromkeys(dense, width), **widths})
            axes = {"dense_arch.weight": (dense, None)}
            for layer in range(num_layers):
                axes[f"inter_arch.layers.{layer}.cross.weight"] = (inputs, inputs)
                axes[f"inter_arch.layers.{layer}.gate.weight"] = (inputs, inputs)
                axes[f"inter_arch.layers.{layer}.bias"] = (inputs,)
            if config.kind == "gdcn_parallel":
                return axes | _parallel_head(config, inputs)
            return axes | _first_layer("over_arch.model.0", inputs)
        case "finalnet":
            features = [*dense, *widths]
            inputs = _vectors(dict.fromkeys(features, width))
            axes = {"dense_arch.weight": (dense, None), "over_arch.block2.0.linear.weight": (None, inputs)}
            if config.finalnet_gates:
                axes["inter_arch.linear.weight"] = (features, features)
                axes["inter_arch.linear.bias"] = (features,)
                inputs = [*inputs, *(("gated", each) for each in inputs)]
            return axes | {"over_arch.block1.0.linear.weight": (None, inputs)}
        case "dcnv3":
            return {"dense_arch.weight": (dense, None)} | _masked_layers(config, [*dense, *widths], width)
        case "qnn":
            return {"dense_arch.weight": (dense, None)} | _quadratic_layers(config, [*dense, *widths], width)
        # the MLP reads all vectors, or means over windows of ``stride`` neighbours, and the dense features
        case "concat":
            inputs = _vectors(widths)
            if stride := config.stride:
                starts = range(-(-len(inputs) % stride // 2), len(inputs), stride)
                inputs = [frozenset(inputs[max(start, 0) : start + stride]) for start in starts]
            return _first_layer("over_arch.model.0", [*inputs, *dense])
    return {}


def _parallel_head(config: ModelConfig, inputs: Names) -> dict[str, Axes]:
    """The last layer reads the cross layers' output, then the MLP's."""
    *hidden, last = config.top_mlp
    of_mlp = [("", place) for place in range(hidden[-1] if last == 1 and hidden else last)]
    return {"over_arch.last.weight": (None, [*inputs, *of_mlp])} | _first_layer("over_arch.mlp", inputs)


def _masked_layers(config: ModelConfig, features: Names, width: int) -> dict[str, Axes]:
    """DCNv3's layers, whose weights all heads share: the first halves of all features' shares, then the second ones."""
    share = width // (config.num_heads or 1) // 2
    half = [(name, place) for name in features for place in range(share)]
    inputs = [(part, *each) for part in range(2) for each in half]
    axes: dict[str, Axes] = {}
    counts = ("exponential", config.dcn_num_layers or 0), ("linear", config.dcnv3_num_linear_layers or 0)
    for network, count in counts:
        for number in range(count):
            layer = f"inter_arch.{network}.{number}"
            axes[f"{layer}.linear.weight"] = (half, inputs)
            axes[f"{layer}.bias"] = (inputs,)
            if config.dcnv3_layer_norm:
                axes |= {f"{layer}.layer_norm.weight": (half,), f"{layer}.layer_norm.bias": (half,)}
    return axes | {f"over_arch.heads.layers.{branch}.weight": (None, inputs) for branch in range(2)}


def _quadratic_layers(config: ModelConfig, features: Names, width: int) -> dict[str, Axes]:
    """QNN's layers. A place of an output belongs to the value there and to the one that stands there by heads."""
    heads, rows = config.num_heads or 1, config.qnn_num_rows or 1
    share = width // heads
    inputs = [(name, place) for name in features for place in range(width)]
    by_heads = [
        (name, head * share + place) for head in range(heads) for name in features for place in range(share)
    ]
    size = len(inputs) // heads  # of a head
    outputs = [
        (row, by_heads[place], inputs[place])
        for head in range(heads)
        for row in range(rows)
        for place in range(head * size, (head + 1) * size)
    ]
    axes: dict[str, Axes] = {"over_arch.last.weight": (None, inputs)}
    for number in range(config.dcn_num_layers or 0):
        layer = f"inter_arch.layers.{number}"
        axes |= {f"{layer}.linear.weight": (outputs, inputs), f"{layer}.linear.bias": (outputs,)}
        if config.batch_norm:
            moments = ("weight", "bias", "running_mean", "running_var")
            axes |= {f"{layer}.norm.{name}": (outputs,) for name in moments}
    return axes
