"""How much memory the optimizer of a table's rows takes."""

from collections.abc import Mapping, Sequence

import numpy as np

from dlrm_app.config.optimizer import SparseSettings, change_settings
from dlrm_app.tables.specs import Table

STATE = {
    "sgd": (0, 0),
    "adagrad": (1, 0),
    "rowwise_adagrad": (0, 1),
    "adam": (2, 0),
    "partial_rowwise_adam": (1, 1),
    "lamb": (2, 0),
    "partial_rowwise_lamb": (1, 1),
}
"""Kind → float32 values kept per weight, and per row of a shard (fbgemm_gpu's momentum1 and momentum2)."""


def optimizer_kinds(tables: Sequence[Table], settings: SparseSettings) -> Mapping[str, str]:
    """Table name → the kind of its optimizer."""
    return {table.name: change_settings(settings, table.optimizer).kind for table in tables}


def state_bytes(kind: str, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of state for shards of ``rows`` × ``columns`` [S]: what is per weight, and what is per row."""
    per_weight, per_row = STATE[kind]
    return 4 * per_weight * rows * columns, 4 * per_row * rows
