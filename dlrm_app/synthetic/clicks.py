"""Click logs in files: blocks of rows made by several threads, written in order, whole or not at all."""

import datetime
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip
from numpy.typing import NDArray

from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.files import output_problems, room_problems, write_json, written_whole
from dlrm_app.kernels.compiled import njit
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.progress import work_bar
from dlrm_app.records import from_json
from dlrm_app.synthetic.days import Lives, drifted, make_lives
from dlrm_app.synthetic.distribution import (
    MISSING,
    MISSING_VALUE,
    NUM_DENSE,
    NUM_SPARSE,
    Shape,
    criteo_shape,
    draw_rows,
)
from dlrm_app.synthetic.signal import Best, Signal, Tally, plant_signal, probability
from dlrm_app.text import next_line

logger = logging.getLogger(__name__)

BLOCK_ROWS = 1 << 14


@dataclass(frozen=True)
class Source:
    """Makes any rows of one distribution: the same rows for the same seed, in whatever pieces they are asked for."""

    shape: Shape
    signal: Signal
    row_key: int
    column_keys: NDArray[np.uint32]
    lives: Lives
    day: int = 0
    is_compressed: bool = False

    def block(self, first_row: int, num_rows: int) -> tuple[bytes, NDArray[np.float64], NDArray[np.uint8]]:
        """Rows from ``first_row`` on: their text, true probabilities [B] and labels [B]."""
        values, ranks, label_draws = draw_rows(self.shape, self.row_key, first_row, num_rows)
        probabilities = probability(self.signal.logits(self.shape, values, ranks))
        labels = (label_draws < probabilities).astype(np.uint8)
        text = format_rows(labels, values, self.lives.numbers(ranks, self.day), self.column_keys)
        if self.is_compressed:  # each block is a member of its own; readers see one stream
            text = igzip.compress(text, mtime=0)
        return text, probabilities, labels


def make_source(config: GenerateConfig) -> Source:
    """Plants the signal that ``config`` describes. ``rows``, ``start_row``, ``days`` and ``threads`` play no part in it."""
    shape = criteo_shape(config.max_cardinality, config.zipf)
    keys = np.random.Generator(np.random.Philox(key=[config.seed, 1]))
    return Source(
        shape,
        plant_signal(shape, config.seed, config.signal.auc, config.signal.click_rate),
        row_key=int(keys.integers(2**63)),
        column_keys=keys.integers(2**32, size=NUM_SPARSE, dtype=np.uint32),
        lives=make_lives(shape, config.new_ids),
        is_compressed=config.days == 1 and config.output.endswith(".gz"),
    )


def source_of_day(first: Source, day: int, drift: float, seed: int) -> Source:
    """The rows of ``day``, counted from 0, of the log that begins with ``first``."""
    return replace(first, day=day, signal=drifted(first.signal, first.lives, day, drift, seed))


def write_clicks(config: GenerateConfig) -> list[Best]:
    """Writes ``config.rows`` rows of every day, and their best scores to ``<file>.best.json``; gives the best scores by day.

    One day is the file ``config.output``; several are a folder of files, of which those that are there stay. Raises
    ConfigError for files with other rows, and if the disk has too little room.
    """
    output = Path(config.output)
    refuse_if(output_problems("output", output, is_folder=config.days > 1))
    logs = _logs(config, output)
    first = make_source(config)
    sample_rows = 1000
    row_bytes = len(first.block(0, sample_rows)[0]) / sample_rows
    (output.parent if config.days == 1 else output).mkdir(parents=True, exist_ok=True)
    kept = [log.written() if config.days > 1 and not config.overwrite else None for log in logs]
    refuse_if(room_problems("rows", output.parent, int(row_bytes * config.rows * kept.count(None))))
    bests = []
    for day, (log, best) in enumerate(zip(logs, kept, strict=True)):
        if best is None:
            source = source_of_day(first, day, config.drift, config.seed) if day else first
            best = log.write(source, config.threads)
        auc = "unknown (one class only)" if best.auc is None else f"{best.auc:.4f}"
        logger.info(
            f"{log.path}: {best.rows:,} rows, {best.positives / best.rows:.1%} clicks; "
            f"best reachable AUC {auc}, log loss {best.logloss:.4f} ({log.best_path})"
        )
        bests.append(best)
    name = output.name.split(".")[0]
    settings = {"dataset": "criteo_kaggle", "input.train": output, "split.val": 0.1, "split.test": 0.1}
    dataset = name if config.days == 1 else f"{name}_dataset"
    logger.info(next_line("dlrm-preprocess", {**settings, "output": output.with_name(dataset)}))
    return bests


@dataclass(frozen=True)
class _Log:
    """A file of ``num_rows`` rows; ``asked`` are the settings that its rows depend on."""

    path: Path
    first_row: int
    num_rows: int
    asked: Mapping[str, Any]

    @property
    def best_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.best.json")

    def written(self) -> Best | None:
        """The best scores of the file, if it is there. Raises ConfigError if other settings made it."""
        if not (self.path.is_file() and self.best_path.is_file()):
            return None
        with suppress(ValueError, AttributeError):
            found = json.loads(self.best_path.read_text(encoding="utf-8"))
            best = from_json(Best, {each.name: found.get(each.name) for each in fields(Best)})
            if found == {**asdict(best), **self.asked} and best.rows == self.num_rows:
                return best
        cure = "choose another output, or overwrite=true to replace it"
        raise ConfigError([Problem(str(self.path), "is there, made with other settings", cure)])

    def write(self, source: Source, threads: int | None) -> Best:
        threads = threads or os.cpu_count() or 1
        stop = self.first_row + self.num_rows
        blocks = map_in_order(
            lambda first: source.block(first, min(BLOCK_ROWS, stop - first)),
            range(self.first_row, stop, BLOCK_ROWS),
            threads,
            2 * threads,
        )
        tally = Tally()
        self.path.parent.mkdir(exist_ok=True)
        with (
            written_whole(self.path) as temporary,
            temporary.open("wb") as file,
            work_bar(total=self.num_rows, unit=" rows", unit_scale=True, desc=self.path.name) as bar,
        ):
            for text, probabilities, labels in blocks:
                file.write(text)
                tally.add(probabilities, labels)
                bar.update(len(labels))
        best = tally.best()
        write_json(self.best_path, {**asdict(best), **self.asked})
        return best


def _logs(config: GenerateConfig, output: Path) -> list[_Log]:
    """The files, a day each."""
    every = asdict(config)
    keys = ("format", "seed", "start_row", "max_cardinality", "zipf", "signal")
    asked = {key: every[key] for key in keys}
    if config.days == 1:
        return [_Log(output, config.start_row, config.rows, asked)]
    logs = []
    for day in range(config.days):
        date = datetime.date.fromisoformat(config.first_day) + datetime.timedelta(day)
        first_row = config.start_row + day * config.rows
        lived = {"start_row": first_row, "day": day, "new_ids": config.new_ids, "drift": config.drift}
        logs.append(_Log(output / f"dt={date}" / "clicks.tsv", first_row, config.rows, asked | lived))
    return logs


_MAX_LINE = 1 + NUM_DENSE * 12 + NUM_SPARSE * 9 + 1
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_TAB, _NEWLINE, _ZERO, _MINUS = ord("\t"), ord("\n"), ord("0"), ord("-")


def format_rows(
    labels: NDArray[np.uint8],
    values: NDArray[np.int64],
    ranks: NDArray[np.int64],
    column_keys: NDArray[np.uint32],
) -> bytes:
    """The lines of rows with ``labels`` [B], dense ``values`` [B, N] and ``ranks`` of ids [B, F].

    A rank becomes an id by a one-to-one mixing of 32 bits, different in each column (``column_keys`` [F]).
    """
    buffer = np.empty(len(labels) * _MAX_LINE, np.uint8)
    length = _format(buffer, labels, values, ranks, column_keys)
    return buffer[:length].tobytes()


@njit(nogil=True, cache=True)
def _format(buffer, labels, values, ranks, column_keys):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for i in range(len(labels)):
        buffer[at] = _ZERO + labels[i]
        at += 1
        for c in range(NUM_DENSE):
            buffer[at] = _TAB
            at += 1
            if values[i, c] != MISSING_VALUE:
                at = _write_integer(buffer, at, values[i, c])
        for c in range(NUM_SPARSE):
            buffer[at] = _TAB
            at += 1
            if ranks[i, c] != MISSING:
                at = _write_hex(buffer, at, _mixed(np.uint32(ranks[i, c]) + column_keys[c]))
        buffer[at] = _NEWLINE
        at += 1
    return at


@njit(nogil=True, cache=True, inline="always")
def _write_integer(buffer, at, value):  # type: ignore[no-untyped-def]  # compiled
    if value < 0:
        buffer[at] = _MINUS
        at += 1
        value = -value
    num_digits = 1
    bound = 10
    while value >= bound:
        num_digits += 1
        bound *= 10
    for digit in range(at + num_digits - 1, at - 1, -1):
        buffer[digit] = _ZERO + value % 10
        value //= 10
    return at + num_digits


@njit(nogil=True, cache=True, inline="always")
def _write_hex(buffer, at, value):  # type: ignore[no-untyped-def]  # compiled
    for digit in range(8):
        buffer[at + digit] = _HEX[(value >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
    return at + 8


@njit(nogil=True, cache=True, inline="always")
def _mixed(x):  # type: ignore[no-untyped-def]  # compiled
    """MurmurHash3's finalizer, one-to-one on 32 bits (Appleby, public domain)."""
    x = np.uint32(x)
    x = np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = np.uint32(x)
    x = np.uint32(x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    x = np.uint32(x)
    return np.uint32(x ^ (x >> np.uint32(16)))
