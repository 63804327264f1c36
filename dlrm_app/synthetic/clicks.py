"""A click log in a file: blocks of rows made by several threads, written in order, whole or not at all."""

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from isal import igzip
from numpy.typing import NDArray
from tqdm import tqdm

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.errors import refuse_if
from dlrm_app.files import write_json, write_problems, written_whole
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.synthetic.best import Best, Tally
from dlrm_app.synthetic.disk_space import refuse_if_too_large
from dlrm_app.synthetic.draw import draw_rows
from dlrm_app.synthetic.shape import NUM_SPARSE, Shape, criteo_shape
from dlrm_app.synthetic.signal import Signal, plant_signal, probability
from dlrm_app.synthetic.text import format_rows
from dlrm_app.text import setting

BLOCK_ROWS = 1 << 14

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Makes any rows of one distribution: the same rows for the same seed, in whatever pieces they are asked for."""

    shape: Shape
    signal: Signal
    row_key: int
    column_keys: NDArray[np.uint32]
    is_compressed: bool = False

    def block(self, first_row: int, num_rows: int) -> tuple[bytes, NDArray[np.float64], NDArray[np.uint8]]:
        """Rows from ``first_row`` on: their text, true probabilities [B] and labels [B]."""
        values, ranks, label_draws = draw_rows(self.shape, self.row_key, first_row, num_rows)
        probabilities = probability(self.signal.logits(self.shape, values, ranks))
        labels = (label_draws < probabilities).astype(np.uint8)
        text = format_rows(labels, values, ranks, self.column_keys)
        if self.is_compressed:  # each block is a member of its own; readers see one stream
            text = igzip.compress(text, mtime=0)
        return text, probabilities, labels


def make_source(config: GenerateConfig) -> Source:
    """Plants the signal that ``config`` describes. ``rows``, ``start_row`` and ``threads`` play no part in it."""
    shape = criteo_shape(config.max_cardinality, config.zipf)
    keys = np.random.Generator(np.random.Philox(key=[config.seed, 1]))
    return Source(
        shape,
        plant_signal(shape, config.seed, config.signal.auc, config.signal.click_rate),
        row_key=int(keys.integers(2**63)),
        column_keys=keys.integers(2**32, size=NUM_SPARSE, dtype=np.uint32),
        is_compressed=config.output.endswith(".gz"),
    )


def write_clicks(config: GenerateConfig) -> Best:
    """Writes ``config.rows`` rows to ``config.output``, and the best scores to ``<output>.best.json``.

    Raises ConfigError if the disk has too little room.
    """
    output = Path(config.output)
    refuse_if(write_problems("output", output))
    output.parent.mkdir(parents=True, exist_ok=True)
    source = make_source(config)
    sample_rows = 1000
    sample_bytes = len(source.block(0, sample_rows)[0])
    suggestion = "an output ending in .gz, or one on another disk"
    refuse_if_too_large(config.rows, sample_bytes, sample_rows, output.parent, suggestion)
    tally = Tally()
    with (
        written_whole(output) as temporary,
        temporary.open("wb") as file,
        tqdm(total=config.rows, unit=" rows", unit_scale=True, desc=output.name) as bar,
    ):
        for text, probabilities, labels in _blocks(source, config):
            file.write(text)
            tally.add(probabilities, labels)
            bar.update(len(labels))
    best = tally.best()
    write_json(_best_path(output), {**asdict(best), **_settings(config)})
    _log_next_command(output, best)
    return best


def _blocks(
    source: Source, config: GenerateConfig
) -> Iterator[tuple[bytes, NDArray[np.float64], NDArray[np.uint8]]]:
    """The file's blocks in order."""
    threads = config.threads or os.cpu_count() or 1
    stop = config.start_row + config.rows
    return map_in_order(
        lambda first: source.block(first, min(BLOCK_ROWS, stop - first)),
        range(config.start_row, stop, BLOCK_ROWS),
        threads,
        2 * threads,
    )


def _best_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.best.json")


def _settings(config: GenerateConfig) -> dict[str, object]:
    settings = asdict(config)
    return {
        key: settings[key] for key in ("format", "seed", "start_row", "max_cardinality", "zipf", "signal")
    }


def _log_next_command(output: Path, best: Best) -> None:
    name = output.name.split(".")[0]
    auc = "unknown (one class only)" if best.auc is None else f"{best.auc:.4f}"
    logger.info(
        f"{output}: {best.rows:,} rows, {best.positives / best.rows:.1%} clicks; "
        f"best reachable AUC {auc}, log loss {best.logloss:.4f} ({_best_path(output)})\n"
        f"next: dlrm-preprocess dataset=criteo_kaggle {setting('input.train', output)} "
        f"split.val=0.1 split.test=0.1 encoding=vocab {setting('output', output.with_name(name))}"
    )
