"""A model with a list that attends to the item shown, and one whose elements have weights."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.dwell_log import COLUMNS, NUM_ITEMS, describe, draw_rows
from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess
from tests.small_run import train_here

ROWS, TEST = 3000, 600
CART = '{name: cart, role: sparse, kind: integer, separator: "|"}'
TABLES = f"""
embedding_dim: 8
specs:
  - {{name: shown, rows: {NUM_ITEMS + 2}, features: [item, cart], pooling: {{attention: item, hidden: [6]}}}}
  - {{name: watched, rows: {NUM_ITEMS + 2}, features: [seen]}}
"""


def rows_with_carts() -> pa.Table:
    """The rows of the dwell log, with a list of items that is empty in a third of the rows."""
    random = np.random.default_rng(4)
    cart = [random.integers(0, NUM_ITEMS, random.integers(0, 3)) for _ in range(ROWS)]
    return draw_rows(ROWS).append_column("cart", pa.array(cart, pa.list_(pa.int64())))


def make_mixed(folder: Path) -> None:
    """Makes FOLDER/data, FOLDER/run, and FOLDER/test.csv with the rows of the test split."""
    folder.mkdir(exist_ok=True)
    describe(folder, columns=[*COLUMNS, CART])
    rows = rows_with_carts()
    write_csv(folder / "log.csv", rows)
    write_csv(folder / "test.csv", rows[ROWS - TEST :])
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/log.csv", f"split.test={TEST / ROWS}"]
    preprocess(
        folder / "data", *given, "encoding=vocab", "encoding.min_count=1", "encoding.shared=[[item,cart]]"
    )
    (folder / "tables.yaml").write_text(TABLES)
    learns = ["trainer.global_batch_size=64", "optimizer.sparse.lr=0.3"]
    train_here(folder / "run", f"data.path={folder}/data", f"tables={folder}/tables.yaml", *learns)
