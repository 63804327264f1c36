"""Writes click logs: several threads make blocks of rows, which are written in order. A file is complete or absent."""

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from isal import igzip
from numpy.typing import NDArray

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.errors import refuse_if
from dlrm_app.files import output_problems, room_problems, write_json, written_whole
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.progress import work_bar
from dlrm_app.result import Paragraph, Result
from dlrm_app.tools.synthetic.catalogue import Catalogue, make_catalogue
from dlrm_app.tools.synthetic.days import IdLifetimes, drifted, make_lifetimes
from dlrm_app.tools.synthetic.description import describe, description_path, items_path
from dlrm_app.tools.synthetic.distribution import (
    MISSING,
    NUM_SPARSE,
    Shape,
    criteo_shape,
    draw_rows,
    uniform_draws,
)
from dlrm_app.tools.synthetic.histories import ITEM, DrawnLists, Histories, make_histories
from dlrm_app.tools.synthetic.lines import format_rows, hash_ids, join_digits, join_ids
from dlrm_app.tools.synthetic.signal import BestScores, Signal, Tally, plant_signal, probability

BLOCK_ROWS = 1 << 14
_ORDERS, _ORDERS_DRIFT, _HISTORIES, _CATALOGUE = 4, 5, 6, 7
"""Random streams of a seed; those of clicks are 0, 1 and 3, that of ``inputs`` is 2."""


@dataclass(frozen=True)
class Orders:
    """The truth of orders, which only clicked rows may have: ``signal`` gives their log-odds after a click.

    ``missing``: the share of the rows, clicked or not, whose order the log does not know.
    """

    signal: Signal
    row_key: int
    missing: float = 0.0


class OrderDraws(NamedTuple):
    """Orders of B rows: true probabilities of a click and an order, 0 or 1, and True for those that the log knows."""

    probabilities: NDArray[np.float64]
    labels: NDArray[np.uint8]
    are_known: NDArray[np.bool_]


class DrawnRows(NamedTuple):
    """Rows: the ``text`` of those that the log has, true ``probabilities`` [B] and ``labels`` [B] of clicks."""

    text: bytes
    probabilities: NDArray[np.float64]
    labels: NDArray[np.uint8]
    orders: OrderDraws | None = None


@dataclass(frozen=True)
class Source:
    """Makes rows of one distribution. The same seed gives the same rows, in blocks of any size."""

    shape: Shape
    signal: Signal
    row_key: int
    column_keys: NDArray[np.uint32]
    lives: IdLifetimes
    day: int = 0
    is_compressed: bool = False
    negatives_kept: float = 1.0
    weight_spread: float = 0.0
    orders: Orders | None = None
    histories: Histories | None = None
    catalogue: Catalogue | None = None

    def block(self, first_row: int, num_rows: int) -> DrawnRows:
        """Rows from ``first_row`` on. The text has only the share of the negatives that is kept."""
        values, ranks, label_draws = draw_rows(self.shape, self.row_key, first_row, num_rows)
        lists, shown, more = None, None, []
        if self.histories is not None:
            lists = self.histories.lists(first_row, num_rows)
            more.append(self.histories.parts(ranks[:, ITEM], lists))
        if self.catalogue is not None:
            shown = self.catalogue.items(first_row, num_rows)
            more.append(self.catalogue.part(shown, ranks))
        further = np.hstack(more) if more else None
        probabilities = probability(self.signal.logits(self.shape, values, ranks, further))
        labels = (label_draws < probabilities).astype(np.uint8)
        text = format_rows(labels, values, self.lives.numbers(ranks, self.day), self.column_keys)
        numbers, orders = np.arange(first_row, first_row + num_rows), None
        if self.orders is not None:
            draws = [uniform_draws(numbers, self.orders.row_key, purpose) for purpose in range(1, 3)]
            after_click = probability(self.orders.signal.logits(self.shape, values, ranks, further))
            is_order = (labels == 1) & (draws[0] < after_click)
            are_known = draws[1] >= self.orders.missing
            orders = OrderDraws(probabilities * after_click, is_order.astype(np.uint8), are_known)
        fields = list(self._more_fields(numbers, orders, lists, shown))
        if self.negatives_kept < 1 or fields:
            text = b"".join(self._lines(text, labels, numbers, fields))
        if self.is_compressed:  # each block is a gzip member; readers see one stream
            text = igzip.compress(text, mtime=0)
        return DrawnRows(text, probabilities, labels, orders)

    def _more_fields(
        self,
        numbers: NDArray[np.int64],
        orders: OrderDraws | None,
        lists: DrawnLists | None,
        shown: NDArray[np.int64] | None,
    ) -> Iterator[list[bytes]]:
        """The fields after the ids, in their order: order, last and bought items, counts, item shown, weight."""
        if orders is not None:
            known = zip(orders.labels.tolist(), orders.are_known.tolist(), strict=True)
            yield [b"%d" % order if is_known else b"" for order, is_known in known]
        if lists is not None:
            yield self._join_items(lists.last)
            yield self._join_items(lists.bought)
            yield join_digits(lists.counts, (lists.counts > 0).sum(axis=1))
        if shown is not None and self.catalogue is not None:
            ids = self.catalogue.ids(shown).reshape(-1, 1)
            yield join_ids(ids, np.ones(len(ids), np.int64))
        if self.weight_spread > 0:
            draws = [uniform_draws(numbers, self.row_key, purpose) for purpose in range(2, 4)]
            # Box and Muller's normal draws
            normal = np.sqrt(-2 * np.log1p(-draws[0])) * np.cos(2 * np.pi * draws[1])
            yield [f"{weight:.4f}".encode() for weight in np.exp(self.weight_spread * normal).tolist()]

    def _join_items(self, ranks: NDArray[np.int64]) -> list[bytes]:
        """The ids of items with ``ranks`` [B, M] on this day, as the column of items has them."""
        lives = IdLifetimes(*(values[[ITEM]] for values in self.lives))
        numbers = lives.numbers(ranks.reshape(-1, 1), self.day)
        ids = hash_ids(numbers, self.column_keys[[ITEM]]).reshape(ranks.shape)
        return join_ids(ids, (ranks != MISSING).sum(axis=1))

    def _lines(
        self,
        text: bytes,
        labels: NDArray[np.uint8],
        numbers: NDArray[np.int64],
        fields: Iterable[list[bytes]],
    ) -> Iterator[bytes]:
        is_kept = (labels == 1) | (uniform_draws(numbers, self.row_key, 1) < self.negatives_kept)
        rows = zip(text.splitlines(), *fields, strict=True)
        for row, kept in zip(rows, is_kept.tolist(), strict=True):
            if kept:
                yield b"\t".join(row) + b"\n"


def make_source(config: GenerateConfig) -> Source:
    """Plants the signal that ``config`` describes.

    It does not depend on ``rows``, ``start_row``, ``days`` and ``threads``.
    """
    shape = criteo_shape(config.max_cardinality, config.zipf)
    keys = np.random.Generator(np.random.Philox(key=[config.seed, 1]))
    length, histories = config.histories.length, None
    if length:
        histories = make_histories(shape, [config.seed, _HISTORIES], length)
    catalogue, items = None, config.catalogue
    if items.width:
        key = [config.seed, _CATALOGUE]
        catalogue = make_catalogue(key, items.width, items.size, items.rows_an_item)
    auc, click_rate, more = config.signal.auc, config.signal.click_rate, (histories, catalogue)
    signal = plant_signal(shape, [config.seed, 0], auc, click_rate, None, *more)
    row_key, column_keys = int(keys.integers(2**63)), keys.integers(2**32, size=NUM_SPARSE, dtype=np.uint32)
    orders = None
    if config.orders.rate > 0:
        after_click = plant_signal(
            shape, [config.seed, _ORDERS], config.orders.auc, config.orders.rate, signal, *more
        )
        orders = Orders(after_click, int(keys.integers(2**63)), config.orders.missing)
    return Source(
        shape,
        signal,
        row_key=row_key,
        column_keys=column_keys,
        lives=make_lifetimes(shape, config.new_ids),
        is_compressed=config.days == 1 and config.output.endswith(".gz"),
        negatives_kept=config.negatives_kept,
        weight_spread=config.weights,
        orders=orders,
        histories=histories,
        catalogue=catalogue,
    )


def source_of_day(first: Source, day: int, drift: float, seed: int) -> Source:
    """The source of ``day``, counted from 0, of the log that begins with ``first``."""
    source = replace(first, day=day, signal=drifted(first.signal, first.lives, day, drift, seed))
    if first.histories is not None:
        items = np.arange(len(first.histories.places)).reshape(-1, 1)
        lives = IdLifetimes(*(values[[ITEM]] for values in first.lives))
        source = replace(source, histories=first.histories.with_items(lives.numbers(items, day)[:, 0]))
    if first.orders is None:
        return source
    signal = drifted(first.orders.signal, first.lives, day, drift, seed, _ORDERS_DRIFT)
    return replace(source, orders=replace(first.orders, signal=signal))


@dataclass(frozen=True)
class Clicks(Result):
    """A click log in ``path``, a file or a folder of days. ``bests``: file → the best scores that its rows allow.

    ``orders``: those of orders, over all rows whose order the log knows.
    """

    path: Path
    bests: dict[Path, BestScores]
    described_by: Mapping[str, object]
    """The settings of dlrm-preprocess that describe the log."""
    orders: dict[Path, BestScores] = field(default_factory=dict)

    def paragraphs(self) -> Iterable[Paragraph]:
        for file, best in self.bests.items():
            yield f"{_line(file, best, 'clicks')} ({best_path(file)})"
            if file in self.orders:
                yield _line(file, self.orders[file], "orders")


def _line(file: Path, best: BestScores, label: str) -> str:
    auc = "unknown (one class only)" if best.auc is None else f"{best.auc:.4f}"
    share = f"{best.positives / best.rows:.1%} {label}"
    return f"{file}: {best.rows:,} rows, {share}; best reachable AUC {auc}, log loss {best.logloss:.4f}"


def best_path(file: Path) -> Path:
    """The file with the best scores of the clicks in ``file``."""
    return file.with_name(f"{file.name}.best.json")


def write_clicks(config: GenerateConfig) -> Clicks:
    """Writes ``config.rows`` rows of every day, their best scores to ``<file>.best.json``, and the log's description.

    One day is the file ``config.output``; several days are a folder of files.
    Raises ConfigError if the disk has too little room.
    """
    output, is_log = Path(config.output), config.days > 1
    refuse_if(output_problems("output", output, is_folder=is_log))
    first = make_source(config)
    (output if is_log else output.parent).mkdir(parents=True, exist_ok=True)
    row_bytes = len(first.block(0, 1000)[0]) / 1000
    refuse_if(room_problems("rows", output.parent, int(row_bytes * config.rows * config.days)))
    keys = ["format", "seed", "start_row", "max_cardinality", "zipf", "signal"]
    keys += [key for key, usual in (("negatives_kept", 1), ("weights", 0)) if getattr(config, key) != usual]
    keys += ["orders"] * (first.orders is not None) + ["histories"] * (first.histories is not None)
    keys += ["catalogue"] * (first.catalogue is not None)
    bests, orders = {}, {}
    for day in range(config.days):
        first_row = config.start_row + day * config.rows
        path = output
        asked = {key: asdict(config)[key] for key in keys} | {"start_row": first_row}
        if is_log:
            date = datetime.date.fromisoformat(config.first_day) + datetime.timedelta(day)
            path = output / f"dt={date}" / "clicks.tsv"
            asked |= {"day": day, "new_ids": config.new_ids, "drift": config.drift}
        source = source_of_day(first, day, config.drift, config.seed) if day else first
        best, of_orders = _write(path, source, first_row, config.rows, config.threads or os.cpu_count() or 1)
        bests[path], labels = best, {}
        if of_orders is not None:
            orders[path], labels = of_orders, {"labels": {"order": asdict(of_orders)}}
        write_json(best_path(path), {**asdict(best), **labels, **asked})
    if first.catalogue is not None:
        num_items = first.catalogue.num_known(config.start_row + config.rows * config.days)
        first.catalogue.write(items_path(output), num_items)
    description = description_path(output)
    with written_whole(description) as temporary:
        temporary.write_text(describe(config), encoding="utf-8")
    shared = {"encoding": "vocab", "encoding.shared": [["item", "last_items"]]}
    return Clicks(output, bests, {"dataset": description, **(shared if first.histories else {})}, orders)


def _write(
    path: Path, source: Source, first_row: int, num_rows: int, threads: int
) -> tuple[BestScores, BestScores | None]:
    """Writes rows from ``first_row`` on; returns the best scores of clicks, and of orders if there are any.

    A log that knows no order has no best scores of them.
    """
    stop = first_row + num_rows
    blocks = map_in_order(
        lambda first: source.block(first, min(BLOCK_ROWS, stop - first)),
        range(first_row, stop, BLOCK_ROWS),
        threads,
        2 * threads,
    )
    tally, of_orders, num_known = Tally(), Tally(), 0
    path.parent.mkdir(exist_ok=True)
    with (
        written_whole(path) as temporary,
        temporary.open("wb") as file,
        work_bar(total=num_rows, unit=" rows", unit_scale=True, desc=path.name) as bar,
    ):
        for text, probabilities, labels, orders in blocks:
            file.write(text)
            tally.add(probabilities, labels)
            if orders is not None:
                of_orders.add(orders.probabilities[orders.are_known], orders.labels[orders.are_known])
                num_known += int(orders.are_known.sum())
            bar.update(len(labels))
    return tally.best(), of_orders.best() if num_known else None
