"""A small log whose clicks have known probabilities, with weights; and its description."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tests import make_log

COLUMNS = [
    "{name: clicked, role: label}",
    "{name: importance, role: weight}",
    "{name: age, role: dense, kind: integer}",
    "{name: shop, role: sparse, kind: integer}",
    "{name: device, role: sparse, kind: string}",
]


def describe(folder: Path, *more: str, columns: list[str] = COLUMNS) -> Path:
    """Writes the description of the log, with ``more`` lines, to log.yaml."""
    return make_log.describe(folder, columns, "null_values: [NA]", *more)


def draw_rows(num_rows: int, seed: int = 0, base: float = -1.0) -> tuple[pa.Table, NDArray[np.float64]]:
    """(rows, the true probability of each click). A row's weight says nothing of its click."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 70, num_rows)
    shop = random.integers(0, 40, num_rows)
    device = random.integers(0, 3, num_rows)
    effects = np.random.default_rng(99).normal(0, 1.0, 40)
    logits = base + 0.04 * (age - 44) + effects[shop] + np.array([-0.5, 0.0, 0.5])[device]
    chances = 1 / (1 + np.exp(-logits))
    weights = np.round(np.exp(random.normal(0, 1, num_rows)), 3) * (random.random(num_rows) > 0.1)
    table = pa.table(
        {
            "clicked": (random.random(num_rows) < chances).astype(np.int64),
            "importance": weights,
            "age": age,
            "shop": shop,
            "device": np.array(["phone", "tablet", "desk"])[device],
        }
    )
    return table, chances
