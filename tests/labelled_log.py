"""A small log with a click, an order that needs the click, and a like that some rows lack; and its description."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tests.weighted_log import describe

LABELS = "labels: [clicked, {order: {given: clicked, loss_weight: 2}}, like]"
COLUMNS = [
    "{name: clicked, role: label}",
    "{name: like, role: label}",
    "{name: order, role: label}",
    "{name: importance, role: weight}",
    "{name: age, role: dense, kind: float}",
    "{name: shop, role: sparse, kind: integer}",
    "{name: user, role: sparse, kind: integer}",
]


def describe_labels(folder: Path, *more: str, weighted: bool = False) -> Path:
    columns = [
        c if weighted or "weight" not in c else c.replace("role: weight", "role: ignore") for c in COLUMNS
    ]
    return describe(folder, LABELS, *more, columns=columns)


def draw_labelled(num_rows: int, seed: int = 0) -> tuple[pa.Table, NDArray[np.float64]]:
    """(rows, the true probabilities [R, 3] of a click, of an order, and of a like). 30% of the likes are missing."""
    random, effects = np.random.default_rng(seed), np.random.default_rng(99)
    shop, user = random.integers(0, 50, num_rows), random.integers(0, 300, num_rows)
    age = np.round(random.normal(size=num_rows), 3)
    by_shop, by_user = effects.normal(size=(3, 50)), 0.6 * effects.normal(size=(3, 300))
    slopes, bases = np.array([0.5, -0.5, 0.0]), np.array([-1.0, -0.5, -1.0])
    logits = (by_shop[:, shop] + by_user[:, user]).T + slopes * age[:, None] + bases
    click, order, like = (1 / (1 + np.exp(-logits))).T
    drawn = random.random((num_rows, 3)) < np.stack([click, order, like], axis=1)
    clicked = drawn[:, 0]
    table = pa.table(
        {
            "clicked": clicked.astype(np.int64),
            "like": pa.array(drawn[:, 2].astype(np.int64), mask=random.random(num_rows) < 0.3),
            "order": (clicked & drawn[:, 1]).astype(np.int64),
            "importance": np.round(random.random(num_rows), 3),
            "age": age,
            "shop": shop,
            "user": user,
        }
    )
    return table, np.stack([click, click * order, like], axis=1)
