"""Reads a sample of the training rows, evenly spread over the input, from which ``auto`` is chosen before any pass.

The sample has all rows of a small input, and about 64 MiB of text of a larger one. It depends on the input alone, not
on the number of threads. Only the beginning of a compressed file and the first rows of a Parquet row group are read,
because the rest takes long to reach.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlrm_app.encoding.pairs import Pair, score_pairs
from dlrm_app.encoding.repeated_columns import repeated_column
from dlrm_app.errors import DataError
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.sources.feeds import InputFeed, unit_feeds
from dlrm_app.logs.sources.parquet_units import footer_of, units_of
from dlrm_app.logs.sources.source import DamagedFileError, InputFile
from dlrm_app.logs.sources.text_units import TextFeed
from dlrm_app.logs.spec import SCORE
from dlrm_app.logs.strings import MISSING_KEY
from dlrm_app.machine import num_cores
from dlrm_app.preprocessing.passes.distinct import Sketch
from dlrm_app.preprocessing.passes.plan import InputPlan

NUM_PIECES, PIECE_BYTES = 64, 1 << 20
"""The number of pieces of a large input that are read, and the bytes of text of each."""
_ROW_STEP = 4
"""Keeps every fourth row of a large input, because neighbouring rows are similar."""
_MAX_ROWS = 1 << 17
"""About the most rows that columns are summarized from."""
NUM_QUANTILES = 64
STUDIED_ROWS = 1_000_000
"""The most rows over which a pass takes only seconds. With more rows, most values are frequent enough to be learnt by
themselves.
"""
_ROWS_AT_A_TIME = 1 << 14
S = TypeVar("S", bound=np.generic)


@dataclass(frozen=True)
class DenseSummary:
    """A dense column: quantiles of its values at 0, 1/64, … 1 (empty if all are missing), mean and deviation."""

    quantiles: tuple[float, ...]
    mean: float
    deviation: float
    is_whole: bool


@dataclass(frozen=True)
class SparseSummary:
    """A sparse column: the number of values in the sample, elements of lists included, and of distinct values."""

    count: int
    distinct: int


@dataclass(frozen=True)
class SampleSummary:
    """A sample of ``num_sampled`` rows, of about ``rows`` rows that there are to learn from; columns by name.

    ``sparse`` and ``pairs`` are empty if there are too many rows to study.
    """

    rows: int
    num_sampled: int
    dense: dict[str, DenseSummary]
    sparse: dict[str, SparseSummary]
    pairs: Sequence[Pair] = ()
    """Pairs of one-hot columns that are worth crossing."""
    repeated: Mapping[str, str] = field(default_factory=dict)
    """List → the one-hot column whose values it holds, such as the items that a user has seen."""


class _SampledRows(NamedTuple):
    """R rows: labels [R], dense [N, R], the keys of each sparse column, lists joined."""

    labels: NDArray[np.uint8]
    dense: NDArray[np.float64]
    keys: list[NDArray[np.uint64]]


def summarize_sample(plan: InputPlan, threads: int | None, *, wants_numbers: bool) -> SampleSummary:
    """Reads a sample of the rows of the studied splits. Raises DataError if a file is damaged.

    Without ``wants_numbers``, footers are enough for a Parquet input of many rows.
    """
    sources = plan.sources_of(plan.studied)
    in_parquet = sum(footer_of(source).num_rows for source in sources if source.format == "parquet")
    is_text = any(source.format != "parquet" for source in sources)
    if not (wants_numbers or is_text) and (rows := _train_rows(plan, in_parquet)) > STUDIED_ROWS:
        return SampleSummary(rows, 0, {}, {})
    sizes = [source.text_bytes for source in sources]
    feeds = [
        feed
        for source, begin in zip(sources, accumulate(sizes, initial=0), strict=False)
        for feed in _feeds(plan, source, begin, sum(sizes))
    ]
    read = partial(read_sample, plan, 1 if sum(sizes) <= NUM_PIECES * PIECE_BYTES else _ROW_STEP)
    with ThreadPoolExecutor(threads or num_cores()) as pool:
        try:
            samples = list(pool.map(read, feeds))
        except DamagedFileError as error:
            again = "then run the same command again"
            raise DataError(*(problem.also(again) for problem in error.problems)) from error
    text_bytes = sum(source.bytes for source in sources if source.format != "parquet")
    lines, seen_bytes = sum(sample[1] for sample in samples), sum(sample[2] for sample in samples)
    rows = in_parquet + lines * text_bytes // max(seen_bytes, 1)
    return _summarize(plan, [part for sample in samples for part in sample[0]], _train_rows(plan, rows))


def _feeds(plan: InputPlan, source: InputFile, begin: int, total: int) -> Sequence[InputFeed]:
    """The pieces of ``source`` to read: all if ``total`` is small, otherwise pieces at evenly spread places.

    ``begin``: the size of all sources before this one.
    """
    columns = plan.columns_of(source) if source.format == "parquet" else {}
    piece = PIECE_BYTES * (source.text_ratio if columns else 1)
    if total <= NUM_PIECES * PIECE_BYTES:
        return unit_feeds(source, columns, piece, lambda _: True)
    spread = [(2 * number + 1) * total // (2 * NUM_PIECES) - begin for number in range(NUM_PIECES)]
    places = [place // source.text_ratio for place in spread if 0 <= place < source.text_bytes]
    if source.is_read_in_order:
        return [TextFeed(source, piece, last=len(places))] if places else []
    wanted = {place // piece for place in places}
    if columns:
        groups = [unit.groups for unit in units_of(source, len(columns), piece)]
        hits = Counter(groups[place * len(groups) // source.bytes] for place in places)
        wanted = {
            groups.index(group) + n for group in hits for n in range(min(hits[group], groups.count(group)))
        }
    return unit_feeds(source, columns, piece, wanted.__contains__)


def read_sample(plan: InputPlan, step: int, feed: InputFeed) -> tuple[list[_SampledRows], int, int]:
    """Returns (every ``step``-th row of ``feed``, its lines, its bytes in the file); the last two are 0 for Parquet."""
    spec, parts = plan.file_specs[feed.source.index], []
    lines = file_bytes = 0
    for text in feed.items():
        cursor = open_cursor(text, spec)
        for raw in cursor.rows(_ROWS_AT_A_TIME, None):
            keys = [part[::step].copy() for part, _ in raw.sparse_keys(spec)]
            parts.append(_SampledRows(raw.labels[::step].copy(), raw.dense[:, ::step].copy(), keys))
        if isinstance(feed, TextFeed):
            lines, file_bytes = lines + cursor.line, file_bytes + text.finish().file_bytes
    return parts, lines, file_bytes


def _train_rows(plan: InputPlan, rows: int) -> int:
    """The number of training rows without those that are cut off for val and test."""
    return rows - sum(int(rows * fraction) for fraction in plan.fractions.values())


def _summarize(plan: InputPlan, parts: Sequence[_SampledRows], rows: int) -> SampleSummary:
    """Summarizes the training rows of ``parts``.

    Parts are in the order of the input, so rows of val and test come last. ``rows``: the number before sampling.
    """
    num_rows = sum(len(part.labels) for part in parts)
    share = _train_rows(plan, num_rows) / max(num_rows, 1)
    step = -(-round(share * num_rows) // _MAX_ROWS) or 1

    def beginning(kind: type[S], arrays: Sequence[NDArray[S]]) -> NDArray[S]:
        joined = np.concatenate([np.empty(0, kind), *arrays])
        return joined[: round(share * len(joined)) : step]

    dense = {
        column.name: summarize_numbers(beginning(np.float64, [part.dense[number] for part in parts]))
        for number, column in enumerate(plan.spec.dense)
        if column.kind != SCORE
    }
    labels = beginning(np.uint8, [part.labels for part in parts])
    if plan.sampled < 1 and len(labels):
        clicks = float(labels.mean())
        rows = round(rows * (clicks + plan.sampled * (1 - clicks)))
    sparse, one_hot, lists = {}, {}, {}
    for number, column in enumerate(plan.spec.sparse if rows <= STUDIED_ROWS else ()):
        keys = beginning(np.uint64, [part.keys[number] for part in parts])
        if column.separator is None and column.rule != "cross":
            one_hot[column.name] = keys
        present = keys[keys != MISSING_KEY]
        if column.separator is not None:
            lists[column.name] = present
        distinct = Sketch(len(present))
        distinct.add(present)
        sparse[column.name] = SparseSummary(len(present), distinct.distinct())
    kinds = {column.name: column.kind for column in plan.spec.sparse}
    of_log = {column.name for column in plan.spec.columns}
    repeated = {}
    for name, items in lists.items():
        candidates = {
            other: one_hot[other] for other in one_hot if kinds[other] == kinds[name] and other in of_log
        }
        if (source := repeated_column(items, candidates)) is not None:
            repeated[name] = source
    pairs = score_pairs(one_hot, labels) if one_hot else []
    return SampleSummary(rows, len(labels), dense, sparse, pairs, repeated)


def summarize_numbers(values: NDArray[np.float64]) -> DenseSummary:
    """Summarizes ``values``, NaN if missing. Moments are rounded to six digits, so that all processors agree."""
    present = np.sort(values[~np.isnan(values)])
    if not len(present):
        return DenseSummary((), 0.0, 1.0, is_whole=True)
    places = np.arange(NUM_QUANTILES + 1) * (len(present) - 1) // NUM_QUANTILES
    mean, deviation = (float(f"{value:.6g}") for value in (present.mean(), present.std()))
    is_whole = bool((present == np.floor(present)).all())
    return DenseSummary(tuple(present[places].tolist()), mean, deviation if deviation > 0 else 1.0, is_whole)
