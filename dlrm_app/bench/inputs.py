"""A dataset to measure on where none is named: synthetic rows for the configuration's tables."""

from pathlib import Path

from dlrm_app.config.bench import BenchConfig
from dlrm_app.config.compose import compose_config
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.synthetic import generate

MIN_ROWS, MIN_BATCHES = 100_000, 8


def write_bench_inputs(config: BenchConfig, folder: Path) -> None:
    """``folder``/dataset, with a train and a val split."""
    batch = config.trainer.global_batch_size
    asked = compose_config(
        "generate",
        GenerateConfig,
        ["format=dataset", f"output={folder / 'dataset'}", f"num_dense={config.num_dense}"],
    )
    asked.tables = config.tables
    asked.rows = max(MIN_ROWS, MIN_BATCHES * batch)
    asked.val_rows = max(config.evaluation.batch_size or 2 * batch, asked.rows // 10)
    generate(asked)
