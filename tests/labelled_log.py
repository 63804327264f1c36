"""A small log with clicks, orders that need a click, and likes that some rows lack; its description and datasets."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import Manifest
from tests.preprocessing.running import run
from tests.weighted_log import describe

HASH = ["encoding=hash", "encoding.num_embeddings=100"]

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


def made(folder: Path, name: str, source: str, *others: str) -> Manifest:
    return run(folder / name, f"dataset={folder}/log.yaml", *HASH, f"input.train={folder}/{source}", *others)


def stored(table: pa.Table, name: str) -> list[float | None]:
    """Another label's values, None where a row lacks it."""
    return [None if np.isnan(value) else value for value in table[name].to_numpy()]


ALL_ROLES = [
    "{name: like, role: label}",
    "{name: shown_at, role: time, kind: seconds}",
    "{name: order, role: label}",
    "{name: clicked, role: label}",
    "{name: importance, role: weight}",
    "{name: age, role: dense, kind: float}",
    "{name: shop, role: sparse, kind: integer}",
    "{name: user, role: sparse, kind: integer}",
]
DERIVED = "derived: [{name: hour, kind: hour, of: shown_at}]"


def all_roles(num_rows: int, seed: int = 0) -> pa.Table:
    """Rows with times and weights, a click that is not the first column, and orders that are missing at times."""
    rows = draw_labelled(num_rows, seed)[0]
    random = np.random.default_rng(seed)
    rows = rows.append_column("shown_at", pa.array(random.integers(0, 10**9, num_rows)))
    orders = pa.array(rows["order"].to_pylist(), mask=random.random(num_rows) < 0.1)
    rows = rows.set_column(rows.column_names.index("order"), "order", orders)
    return rows.select([column.partition(":")[2].partition(",")[0].strip() for column in ALL_ROLES])


def describe_all_roles(folder: Path, *more: str) -> Path:
    return describe(folder, LABELS, DERIVED, *more, columns=ALL_ROLES)
