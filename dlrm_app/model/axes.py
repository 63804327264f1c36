"""Names of positions along the axes of a weight: the terms in which an architecture names its own (``name_axes``)."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

Names = Sequence[Hashable]
Axes = tuple[Names | None, ...]
"""Names of the positions along each axis of a weight; None: the positions have no names."""


def places(widths: Mapping[Any, int]) -> list[Hashable]:
    """(feature, place in its vector) for each position of vectors side by side, from feature → width."""
    return [(name, place) for name, width in widths.items() for place in range(width)]


def first_layer(mlp: str, inputs: Names) -> dict[str, Axes]:
    """The weight of the first layer of torchrec's MLP ``mlp``, which reads ``inputs``."""
    return {f"{mlp}._mlp.0._linear.weight": (None, inputs)}
