"""``encoding=auto`` and ``auto`` under ``dense.``: chooses the settings that were not typed, from a sample of the rows.

The rules and the measurements behind them: docs/experiments/quality.md.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from dlrm_app.config.datasets import AUTO, DenseConfig, EncodingConfig, PreprocessConfig
from dlrm_app.encoding.column_settings import bucket_name, chosen, new_numbers, per_column
from dlrm_app.encoding.columns import MIN_COUNT, base_transform
from dlrm_app.logs.read_spec import cross_name
from dlrm_app.logs.spec import Spec
from dlrm_app.preprocessing.passes.look import STUDIED_ROWS, DenseSummary, SampleSummary, summarize_sample
from dlrm_app.preprocessing.request import Request
from dlrm_app.records import Json
from dlrm_app.table import Column, text_table
from dlrm_app.text import listed

logger = logging.getLogger(__name__)

HASHED_ROWS = 100_000
"""Rows of a table of hashed ids."""
MOST_IDS = 3_000_000
"""The most ids of all vocabularies together: counting clicks takes 400 bytes for each, and memory_gib is 2 by default."""
MOST_CLICKS = 5_300_000
"""The most ids of all target columns together, whose clicks take 2 GiB."""
LONG_TAIL = 4.0
"""log1p is chosen if the last 64-quantile is more than this many times as far from the median as the first."""
BUCKETS, MORE_BUCKETS, BUCKET_ROWS = 16, 32, 4000
"""Buckets of a column; more buckets if each has at least BUCKET_ROWS rows."""
CROSS_GAIN, MOST_CROSSES = 0.0015, 8
"""The share of the labels' entropy that a pair of columns must explain beyond its parts, and the most pairs taken."""
AUTO_ENCODING = ("kind", "num_embeddings", "min_count")
_COUNTING_KEYS = ("num_embeddings", "min_count", "top_k")
"""The keys of ``encoding`` that decide which values get an id; each may differ by column."""
SHARED = "shared"
"""The key of ``encoding`` that is also chosen for logs with lists."""


Reason = tuple[str, str, str]
"""(a choice, the column that it is made for, why)."""


@dataclass(frozen=True)
class Choice:
    """The sections ``encoding`` and ``dense`` with choices made, and the reasons for these."""

    encoding: EncodingConfig
    dense: DenseConfig
    reasons: tuple[Reason, ...] = ()

    def with_encoding(self, reasons: Iterable[Reason] = (), **values: Any) -> "Choice":
        """This choice with other ``values`` of encoding, for ``reasons``."""
        encoding = replace(self.encoding, **values)
        return replace(self, encoding=encoding, reasons=(*self.reasons, *reasons))

    def with_dense(self, reasons: Iterable[Reason] = (), **values: Any) -> "Choice":
        """This choice with other ``values`` of dense, for ``reasons``."""
        return replace(self, dense=replace(self.dense, **values), reasons=(*self.reasons, *reasons))


def with_all_choices(request: Request, before: Json) -> tuple[PreprocessConfig, Json | None]:
    """Returns (the configuration of ``request`` with every choice made, the record of the choices).

    Keeps the choices of an earlier run, whose settings were ``before``; makes others from a sample of the rows.
    """
    plan, open_keys = request.inputs, open_choices(request.config)
    config = with_choices(request.config, before)
    to_choose = open_choices(config)
    if not to_choose:
        return config, before.get("auto") if open_keys else None
    wants_numbers = bool(to_choose.get("dense", {}).keys() - {"target_columns"})
    summary = summarize_sample(plan, config.threads, wants_numbers=wants_numbers)
    encoding, dense = config.encoding, config.dense
    if isinstance(config.multi_hot.sizes, list) and encoding.crosses == AUTO:
        # the list has an entry for each column, and none for a cross
        encoding = replace(encoding, crosses=None)
    if request.base is not None:
        new = new_numbers(request.base, plan.spec)
        summary = replace(summary, dense={name: summary.dense[name] for name in new})
        choice = _choose_transforms(summary, Choice(encoding, dense))
        transform = base_transform(request.base, plan.spec, choice.dense.transform)
        choice = choice.with_dense(transform=transform)
    else:
        choice = choose(summary, encoding, dense, plan.spec, plan.has_clicks)
    logger.info(
        f"chosen by a look at {summary.num_sampled:,} of about {summary.rows:,} rows:\n{choice_table(choice)}"
    )
    reasons = [list(reason) for reason in choice.reasons]
    record = {"rows": summary.rows, "seen": summary.num_sampled, "keys": open_keys, "reasons": reasons}
    return replace(config, encoding=choice.encoding, dense=choice.dense), record


def choose(
    summary: SampleSummary, encoding: EncodingConfig, dense: DenseConfig, spec: Spec, has_clicks: bool
) -> Choice:
    """Makes the choices that ``encoding`` and ``dense`` leave open, from ``summary`` alone. Typed values are kept."""
    choice = Choice(encoding, dense)
    if encoding.crosses == AUTO:
        choice = _choose_crosses(summary, spec, choice)
    if encoding.kind == AUTO:
        crosses = [cross_name(parts) for parts in choice.encoding.crosses or []]
        choice = _choose_ids(summary, [column.name for column in spec.sparse] + crosses, choice)
    if dense.transform == AUTO:
        choice = _choose_transforms(summary, choice)
    choice = _choose_buckets(summary, spec, choice)
    if dense.target_columns == AUTO:
        has_columns = choice.dense.bucket_columns or any(c.separator is None for c in spec.sparse)
        if has_clicks and has_columns and summary.rows <= STUDIED_ROWS:
            return _choose_targets(summary, spec, choice)
        return choice.with_dense(target_columns=None)
    return choice


def _choose_targets(summary: SampleSummary, spec: Spec, choice: Choice) -> Choice:
    """Takes all one-hot columns; if their clicks would take too much memory, those with the fewest ids."""
    names = [column.name for column in spec.sparse if column.separator is None]
    given = per_column(choice.encoding.num_embeddings, [column.name for column in spec.sparse])
    sizes = dict(zip((column.name for column in spec.sparse), given, strict=True))
    most = _most_ids(summary, [name for name in names if name in summary.sparse])
    ids = {name: sizes[name] or most.get(name, 0) for name in names}
    order = sorted(names, key=lambda name: ids[name])
    fitting = [
        name
        for name, total in zip(order, accumulate(ids[each] for each in order), strict=True)
        if total <= MOST_CLICKS
    ]
    why = "its click rate can be estimated from fewer rows than an embedding needs"
    if len(fitting) == len(names):
        return choice.with_dense([("target column", "all one-hot columns", why)], target_columns="all")
    taken = [name for name in names if name in {*fitting}]
    why_not = f"all columns may have more than {MOST_CLICKS:,} ids, whose clicks take too much memory"
    reasons = [("target column", name, why) for name in taken]
    reasons += [("no target column", name, why_not) for name in names if name not in {*taken}]
    return choice.with_dense(reasons, target_columns=taken or None)


def _choose_crosses(summary: SampleSummary, spec: Spec, choice: Choice) -> Choice:
    """Takes the pairs with the largest gains; none if a setting is a list, which has no entry for a cross."""
    declared = {frozenset(column.of) for column in spec.derived}
    is_listed = any(isinstance(getattr(choice.encoding, key), list) for key in _COUNTING_KEYS)
    useful = [pair for pair in summary.pairs if pair.gain >= CROSS_GAIN and {*pair.names} not in declared]
    taken = [] if is_listed else useful[:MOST_CROSSES]
    why = "the pair predicts clicks better than its two columns alone"
    reasons = [("cross", cross_name(pair.names), why) for pair in taken]
    return choice.with_encoding(reasons, crosses=[[*pair.names] for pair in taken] or None)


def _choose_ids(summary: SampleSummary, names: Sequence[str], choice: Choice) -> Choice:
    """Chooses vocabularies if the log is small enough to study; otherwise, and for columns of many values, hashes."""
    given = choice.encoding
    sizes = dict(zip(names, per_column(given.num_embeddings, names), strict=True))
    needs_vocabulary = any(value is not None for value in (given.min_count, given.top_k, given.shared))
    hashed, about = f"hash, {HASHED_ROWS:,} rows", f"about {summary.rows:,} rows"
    if summary.rows <= STUDIED_ROWS or needs_vocabulary:
        unsized = [name for name in summary.sparse if sizes[name] is None]  # crosses have few values
        too_many = _too_many(summary, [] if needs_vocabulary else unsized)
        why = "its values are too many for a vocabulary"
    else:
        too_many = [name for name in names if sizes[name] is None]
        why = f"{about}: no pass over all values"
    sizes |= dict.fromkeys(too_many, HASHED_ROWS)
    reasons = [(hashed, name, why) for name in too_many]
    counted = [name for name in names if sizes[name] is None]
    if not counted:
        same = set(sizes.values())
        return choice.with_encoding(
            reasons, kind="hash", num_embeddings=same.pop() if len(same) == 1 else sizes
        )
    least = given.min_count or MIN_COUNT
    reasons += [
        (f"vocabulary, min_count {least}", name, f"{about}: values can be counted") for name in counted
    ]
    sized = {name: size for name, size in sizes.items() if size is not None} or None
    choice = choice.with_encoding(reasons, kind="vocab", min_count=least, num_embeddings=sized)
    return _choose_shared(summary, counted, choice) if given.shared is None else choice


def _choose_shared(summary: SampleSummary, names: Sequence[str], choice: Choice) -> Choice:
    """Gives each list among ``names`` and the column that it repeats one vocabulary, if their settings are equal."""
    groups: dict[str, list[str]] = {}
    columns = [*summary.sparse]
    for name, column in summary.repeated.items():
        settings = [per_column(getattr(choice.encoding, key), columns) for key in _COUNTING_KEYS]
        own, other = ([values[columns.index(each)] for values in settings] for each in (name, column))
        if {name, column} <= {*names} and own == other:
            groups.setdefault(column, [column]).append(name)
    reasons = [
        (f"shared with {column}", name, f"holds values of {column}: one vocabulary, one table")
        for column, group in groups.items()
        for name in group[1:]
    ]
    return choice.with_encoding(reasons, shared=list(groups.values()) or None)


def _too_many(summary: SampleSummary, names: Sequence[str]) -> list[str]:
    """The columns among ``names`` with the most values: without them, vocabularies have at most MOST_IDS ids.

    Columns with at most HASHED_ROWS ids stay, because hashing would save none.
    """
    most = _most_ids(summary, names)
    total, taken = sum(most.values()), list[str]()
    for name in sorted(most, key=lambda name: (-most[name], name)):
        if total <= MOST_IDS or most[name] <= HASHED_ROWS:
            break
        taken.append(name)
        total -= most[name]
    return taken


def _most_ids(summary: SampleSummary, names: Sequence[str]) -> dict[str, int]:
    """An estimate of the most ids that the vocabulary of each of ``names`` may have."""
    scale, values = summary.rows / max(summary.num_sampled, 1), summary.sparse
    return {name: int(scale * min(values[name].distinct, values[name].count / MIN_COUNT)) for name in names}


def _choose_transforms(summary: SampleSummary, choice: Choice) -> Choice:
    rules: Json = {}
    reasons: list[Reason] = []
    for name, numbers in summary.dense.items():
        if is_count(numbers):
            rules[name], what, why = "log1p", "log1p", "not negative, with a long tail or whole and small"
        else:
            rules[name] = {"kind": "standardize", "mean": numbers.mean, "deviation": numbers.deviation}
            what, why = "standardize", "no count or amount with a long tail"
        reasons.append((what, name, why))
    return choice.with_dense(reasons, transform=rules or "log1p")


def is_count(numbers: DenseSummary) -> bool:
    """True for counts, amounts and similar numbers, rarely negative, whose logarithms are easier to learn from."""
    points = numbers.quantiles or (0.0, 0.0)
    low, middle, high = points[1], points[len(points) // 2], points[-2]
    has_tail = numbers.is_whole if high < 10 else high - middle > LONG_TAIL * (middle - low)
    return low >= -1 and has_tail


def _choose_buckets(summary: SampleSummary, spec: Spec, choice: Choice) -> Choice:
    # with few rows in each bucket, more buckets lose more by badly learnt vectors than they gain
    most = MORE_BUCKETS if summary.rows >= MORE_BUCKETS * BUCKET_ROWS else BUCKETS
    if choice.dense.bucket_columns == AUTO:
        taken = {column.name for column in (*spec.columns, *spec.derived) if column.role != "ignore"}
        varied = [
            name
            for name, numbers in summary.dense.items()
            if bucket_name(name) not in taken
            and len(set(numbers.quantiles)) > 1
            and (summary.rows <= STUDIED_ROWS or not is_count(numbers))
        ]
        why = "one id per range, so the effect need not be monotonic"
        choice = choice.with_dense(
            [(f"buckets by quantiles, up to {most}", name, why) for name in varied],
            bucket_columns="all" if varied and len(varied) == len(summary.dense) else varied or None,
        )
    if choice.dense.bucket_boundaries == AUTO:
        wanted = chosen(choice.dense.bucket_columns, list(summary.dense))
        found = {name: boundaries(summary.dense[name], most) for name in wanted}
        choice = choice.with_dense(bucket_boundaries=found)
    return choice


def boundaries(numbers: DenseSummary, most: int) -> list[float]:
    """Rising boundaries of at most ``most`` buckets with about as many rows each.

    A value that would fill several buckets has its own.
    """
    points = numbers.quantiles or (0.0,)
    every = max((len(points) - 1) // most, 1)
    return sorted({*points[every:-1:every]} - {points[0]}) or [points[-1]]


def choice_table(choice: Choice) -> str:
    """A table of choices, columns and reasons; equal lines are joined."""
    together: dict[tuple[str, str], list[str]] = {}
    for what, name, why in choice.reasons:
        together.setdefault((what, why), []).append(name)
    rows = [[what, listed(names, 4), why] for (what, why), names in together.items()]
    return text_table(
        [Column("chosen", is_words=True), Column("of", is_words=True), Column("why", is_words=True)], rows
    )


def open_choices(config: PreprocessConfig) -> dict[str, Json]:
    """The keys that ``config`` leaves open, by section, with their current values."""
    encoding, dense = config.encoding, config.dense
    if encoding.kind == "from_dataset" or encoding.grow_from:
        # the other dataset decides all but new columns
        rules = dense.transform
        is_open = isinstance(rules, dict) and AUTO in rules.values()
        return {"dense": {"transform": rules}} if is_open else {}
    ids = [key for key in AUTO_ENCODING if encoding.kind == AUTO and getattr(encoding, key) in (AUTO, None)]
    ids += ["crosses"] * (encoding.crosses == AUTO)
    has_lists = any(isinstance(c, dict) and c.get("separator") for c in config.dataset.columns)
    ids += [SHARED] * (has_lists and "kind" in ids and encoding.shared is None)
    out = {
        "encoding": {key: getattr(encoding, key) for key in ids},
        "dense": {key: value for key, value in asdict(dense).items() if value == AUTO},
    }
    return {section: keys for section, keys in out.items() if keys}


def with_choices(config: PreprocessConfig, before: Json) -> PreprocessConfig:
    """``config`` with open keys filled from the settings ``before`` of an earlier run, if it chose them too."""
    chosen_before, open_keys = before.get("auto", {}).get("keys", {}), open_choices(config)
    filled = {
        section: {
            key: before[section][key]
            for key in open_keys.get(section, ())
            if key in chosen_before.get(section, ())
        }
        for section in ("encoding", "dense")
    }
    if "bucket_boundaries" in open_keys.get("dense", ()) and not config.dense.bucket_columns:
        filled["dense"]["bucket_boundaries"] = {}  # without bucket columns there are no boundaries to choose
    return replace(
        config,
        encoding=replace(config.encoding, **filled["encoding"]),
        dense=replace(config.dense, **filled["dense"]),
    )
