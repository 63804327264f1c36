"""``dry_run=true``: what a run would take, judged by a sample of its input. Writes nothing."""

import logging
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.data.manifest import DenseColumn, SparseColumn, read_manifest
from dlrm_app.display.numbers import bytes_text, count, duration, percent, short
from dlrm_app.preprocess.encode.columns import (
    check_columns,
    columns_of,
    dense_columns,
    extended,
    hash_columns,
    per_column,
)
from dlrm_app.preprocess.encode.sparse import TABLE_BYTES, TABLE_FILL
from dlrm_app.preprocess.job import sample
from dlrm_app.preprocess.job.executor import LocalExecutor, Work
from dlrm_app.preprocess.job.journal import Result
from dlrm_app.preprocess.job.work_plan import Plan, make_plan
from dlrm_app.preprocess.read.first_line import check_first_lines
from dlrm_app.preprocess.read.source import find_sources
from dlrm_app.preprocess.read.spec import Spec, read_spec
from dlrm_app.preprocess.read.units import TextFeed
from dlrm_app.preprocess.statistics.growth import Growth, growths
from dlrm_app.preprocess.statistics.study import has_strings

_MIN_BLOCKS = 12
_GATHERING = 0.7
"""Share of the time of encoding that gathering shuffled shards took, measured."""
_TABLE_COPIES = 3
"""How many times a unit's rows lie in memory while they are put in another order."""
_COUNT_BYTES = 64
"""Memory for each distinct value of a unit that is being counted."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Estimate:
    """What a run would take; bytes and seconds. ``vocabularies``: feature → (distinct values, values with an id)."""

    rows: dict[str, int]
    rejected: float
    text: int
    output: int
    shards: int
    work: int
    memory: int
    seconds: dict[str, float]
    vocabularies: dict[str, tuple[int, int]]
    free: int
    threads: int


def estimate(config: PreprocessConfig) -> Estimate:
    """Reads a sample of the input, measures every pass on it, and says what all of it would take.

    Raises ConfigError and DataError for what would fail at once in the run itself.
    """
    spec = read_spec(config.dataset)
    check_columns(config, spec)
    plan = make_plan(config, spec, find_sources(config.input))
    check_first_lines(plan)
    executor = LocalExecutor(config.threads)
    feeds = sample.choose_blocks(plan.sources, max(_MIN_BLOCKS, 2 * executor.num_threads))
    found = _measure(config, plan, executor, feeds)
    _report(config, plan, found)
    return found


def _measure(
    config: PreprocessConfig, plan: Plan, executor: LocalExecutor, feeds: Sequence[TextFeed]
) -> Estimate:
    sizes = {source.place: sample.text_bytes(source) for source in plan.sources}
    total = sum(sizes.values())
    times = {}
    if plan.fractions:
        times["counting lines"], _ = _timed(executor, sample.count_lines, feeds)
    growth: dict[str, Growth] = {}
    if config.encoding.kind == "vocab" or config.dense.transform == "standardize":
        times["studying values"], studied = _timed(executor, sample.Study(plan), feeds)
        growth = growths(plan.spec, studied) if config.encoding.kind == "vocab" else {}
    dense, sparse, folder = _columns(config, plan.spec, growth)
    encode = sample.Encode(plan, tuple(dense), tuple(sparse), folder)
    times["encoding"], results = _timed(executor, encode, feeds)
    scale = total / max(sum(result["text"] for result in results), 1)
    times = {name: seconds * scale for name, seconds in times.items()}
    rows, rejected = _rows(plan, sizes, results)
    vocabularies = _vocabularies(config, growth, rows)
    unit_rows = sum(rows.values()) * min(plan.unit_bytes / max(total, 1), 1)
    unit_values = sum(feature.at(unit_rows) for feature in growth.values())
    output = sum(result["bytes"] for result in results) * scale
    if plan.shuffle == "full":
        times["gathering"] = (
            _GATHERING * times["encoding"] * rows.get("train", 0) / max(sum(rows.values()), 1)
        )
    num_units = sum(max(-(-size // plan.unit_bytes), 1) for size in sizes.values())
    row_bytes = 4 * (len(dense) + len(sparse)) + 9
    return Estimate(
        rows=rows,
        rejected=rejected,
        text=total,
        output=round(output),
        shards=_num_shards(config, plan, num_units, rows),
        work=_work_bytes(plan, rows, row_bytes, num_units, unit_values),
        memory=_memory(config, plan, executor.num_threads, rows, total, row_bytes, vocabularies, unit_values),
        seconds=times,
        vocabularies=vocabularies,
        free=shutil.disk_usage(_existing(plan.output)).free,
        threads=executor.num_threads,
    )


def _columns(
    config: PreprocessConfig, spec: Spec, growth: dict[str, Growth]
) -> tuple[list[DenseColumn], list[SparseColumn], Path]:
    """Columns to encode the sample with: hashes stand in for vocabularies to be, no transform for a standardization."""
    if config.encoding.kind == "from_dataset":
        manifest = read_manifest(Path(config.encoding.path or ""))
        return *columns_of(manifest), Path(config.encoding.path or "")
    if growth:
        encoding = {"kind": "hash", "function": "mix64", "missing_id": 0}
        columns = [
            SparseColumn(c.name, growth[c.name].distinct + 2, encoding, multi_hot=c.separator is not None)
            for c in spec.sparse
        ]
    else:
        columns = hash_columns(config, spec)
    if config.dense.transform == "standardize":
        dense = [DenseColumn(column.name, {"kind": "none"}) for column in spec.dense]
    else:
        dense = dense_columns(config, spec, None)
    return dense, extended(columns, config, spec), Path()


def _timed(executor: LocalExecutor, work: Work, feeds: Sequence[TextFeed]) -> tuple[float, list[Result]]:
    """(seconds, results); a first block is worked on beforehand, so that compiled code is loaded."""
    for _ in executor.run(work, feeds[:1]):
        pass
    start = time.perf_counter()
    results = list(executor.run(work, feeds))
    return time.perf_counter() - start, results


def _rows(plan: Plan, sizes: dict[int, int], results: Sequence[Result]) -> tuple[dict[str, int], float]:
    """(rows of each split, share of rejected lines)."""
    rows = {}
    for split in {source.split for source in plan.sources}:
        size = sum(sizes[source.place] for source in plan.sources if source.split == split)
        own = [result for result in results if result["split"] == split] or results
        rows[split] = size * sum(r["rows"] for r in own) / max(sum(r["text"] for r in own), 1)
    train = rows.get("train", 0.0)
    for split, fraction in plan.fractions.items():
        rows[split] = train * fraction
        rows["train"] -= rows[split]
    good, bad = (sum(result[key] for result in results) for key in ("rows", "rejects"))
    return {split: round(rows[split]) for split in plan.splits}, bad / max(good + bad, 1)


def _vocabularies(
    config: PreprocessConfig, growth: dict[str, Growth], rows: dict[str, int]
) -> dict[str, tuple[int, int]]:
    """Feature → (distinct values, values with an id)."""
    studied = rows.get("train", sum(rows.values()))
    limits = per_column(config.encoding.top_k, list(growth))
    found = {}
    for (name, feature), limit in zip(growth.items(), limits, strict=True):
        distinct = feature.at(studied)
        kept = feature.often(studied, config.encoding.min_count or 1)
        found[name] = (distinct, kept if limit is None else min(kept, limit))
    return found


def _num_shards(config: PreprocessConfig, plan: Plan, num_units: int, rows: dict[str, int]) -> int:
    if plan.shuffle != "full":
        return num_units + len(plan.fractions)
    others = sum(count for split, count in rows.items() if split != "train")
    gathered = -(-rows.get("train", 0) // config.layout.shuffled_shard_rows)
    return round(num_units * others / max(sum(rows.values()), 1)) + gathered


def _work_bytes(plan: Plan, rows: dict[str, int], row_bytes: int, num_units: int, unit_values: int) -> int:
    """Room for what is deleted in the end: runs of shuffled rows, counts of values."""
    runs = rows.get("train", 0) * row_bytes if plan.shuffle == "full" else 0
    return runs + 16 * num_units * unit_values


def _memory(
    config: PreprocessConfig,
    plan: Plan,
    threads: int,
    rows: dict[str, int],
    text: int,
    row_bytes: int,
    vocabularies: dict[str, tuple[int, int]],
    unit_values: int,
) -> int:
    """The peak so far, which has all but the size of units in it, and what that adds."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    unit = min(plan.unit_bytes, text)
    # text where it must be held, then the encoded rows of a unit
    holds_text = any(source.is_gzip for source in plan.sources) or (vocabularies and has_strings(plan.spec))
    per_thread = max(unit - sample.BLOCK_BYTES, 0) if holds_text else 0
    if plan.shuffle != "none":
        per_thread += round(_TABLE_COPIES * row_bytes * sum(rows.values()) * unit / max(text, 1))
    per_thread = max(per_thread, _COUNT_BYTES * unit_values)
    entries = sum(kept for _, kept in vocabularies.values())
    return peak + threads * per_thread + int(entries / TABLE_FILL) * TABLE_BYTES


def _existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _report(config: PreprocessConfig, plan: Plan, found: Estimate) -> None:
    splits = ", ".join(f"{name} {rows:,}" for name, rows in found.rows.items())
    needed = found.output + found.work
    passes = ", ".join(f"{name} {duration(seconds)}" for name, seconds in found.seconds.items())
    total = sum(found.seconds.values())
    lines = [
        f"an estimate, from a sample of the {bytes_text(found.text)} of text in {count(len(plan.sources), 'file')}:",
        f"  rows    {sum(found.rows.values()):,} ({splits}); {percent(found.rejected)} of the lines malformed",
        f"  output  {bytes_text(found.output)} in {count(found.shards, 'shard')}",
        f"  disk    {bytes_text(needed)} needed on the way, {bytes_text(found.free)} free at {plan.output}",
        f"  memory  {bytes_text(found.memory)} at the peak",
        f"  time    {duration(total)} with {count(found.threads, 'thread')} on this machine ({passes})",
    ]
    lines += _vocabulary_lines(found)
    lines += warnings(config, found, needed)
    lines.append("nothing was written; next: the same command without dry_run=true")
    logger.info("\n".join(lines))


def _vocabulary_lines(found: Estimate) -> list[str]:
    if not found.vocabularies:
        return []
    parts = [f"{name} {short(kept)}" for name, (_, kept) in found.vocabularies.items()]
    return [f"  ids     {', '.join(parts)}"]


def warnings(config: PreprocessConfig, found: Estimate, needed: int) -> list[str]:
    """What will make the run fail, with its cure; ``needed``: bytes on disk."""
    lines = []
    if needed > found.free:
        lines.append(
            f"warning: that is {bytes_text(needed - found.free)} more than there is room for: give another output="
        )
    if found.rejected > config.rejects.max_fraction:
        lines.append(
            f"warning: more lines are malformed than rejects.max_fraction={config.rejects.max_fraction} allows: "
            "check dataset= and the files"
        )
    entries = sum(kept for _, kept in found.vocabularies.values())
    if int(entries / TABLE_FILL) * TABLE_BYTES > config.memory_gib * 2**30:
        lines.append(
            f"warning: vocabularies of {entries:,} values do not fit in memory_gib={config.memory_gib}: "
            "raise it, or encoding.min_count, or set encoding.top_k"
        )
    return lines
