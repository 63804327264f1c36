"""What the number of rows and this machine change of a recipe."""

from collections.abc import Sequence

import numpy as np

from dlrm_app.config.train import TrainConfig
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, table_settings
from dlrm_app.tables.specs import Table
from dlrm_app.text import count
from dlrm_app.training.recommendation.recipes import Setting

LEAST_STEPS = 100
"""The recipe for small samples was measured with 117 steps (30,000 rows at batch 256)."""


def batch_setting(batch_size: int, rows: int, num_ranks: int) -> Setting:
    """The global batch: the recipe's, unless that leaves too few steps or cannot be dealt to the ranks."""
    key, lanes = "trainer.global_batch_size", enough_lanes(num_ranks)
    wanted = min(batch_size, rows // LEAST_STEPS)
    fitting = max(1, wanted // lanes) * lanes
    if fitting == batch_size:
        return Setting(key, f"{count(rows // batch_size, 'step')} an epoch")
    if wanted < batch_size:
        why = f"at {batch_size:,} an epoch would have {count(rows // batch_size, 'step')}; this has {rows // fitting:,}"
    else:
        why = f"a multiple of {lanes} lanes, that {num_ranks} ranks divide"
    return Setting(key, why, str(fitting))


def training_bytes(tables: Sequence[Table], config: TrainConfig) -> int:
    """Bytes of all tables' weights and of their optimizer's state, over all ranks."""
    total = 0
    for table in tables:
        kind = table_settings(table, config.optimizer.sparse).kind
        per_weight, per_row = SPARSE_OPTIMIZERS[kind].state_bytes(np.array(table.rows), np.array(table.dim))
        total += table.num_bytes + int(per_weight) + int(per_row)
    return total
