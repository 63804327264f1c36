"""``dry_run=true``: what a run would take, judged by the real passes on a sample of its input. Leaves nothing behind."""

import logging
import resource
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from dlrm_app.config.preprocess import PreprocessConfig, RejectsConfig
from dlrm_app.preprocess.encode.columns import check_columns, per_column
from dlrm_app.preprocess.encode.sparse import TABLE_BYTES, TABLE_FILL
from dlrm_app.preprocess.job.stages import Stages
from dlrm_app.preprocess.passes.encode_pass import EncodedUnit
from dlrm_app.preprocess.passes.growth import Growth, fit_growth
from dlrm_app.preprocess.passes.study import StudiedUnit, count_file, has_strings
from dlrm_app.preprocess.read.first_line import check_first_lines
from dlrm_app.preprocess.read.spec import read_spec
from dlrm_app.preprocess.units.executor import Feed, LocalExecutor, Work
from dlrm_app.preprocess.units.gzip_text import estimate_text_bytes
from dlrm_app.preprocess.units.journal import R
from dlrm_app.preprocess.units.source import Source, find_sources
from dlrm_app.preprocess.units.units import TextFeed
from dlrm_app.preprocess.units.work_folder import open_journal
from dlrm_app.preprocess.units.work_plan import Plan, make_plan
from dlrm_app.text import bytes_text, count, duration, percent, short

BLOCK_BYTES = 4 << 20
_MIN_BLOCKS = 12
_GZIP_BLOCKS = 2
"""Blocks read of a gzip file, from its start: it cannot be read from anywhere else."""
_TABLE_COPIES = 3
"""How many times a unit's rows lie in memory while they are put in another order."""
_COUNT_BYTES = 64
"""Memory for each distinct value of a unit that is being counted."""
T = TypeVar("T")
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


@dataclass(frozen=True)
class _Sampled:
    """What the passes made of the sample; ``output``: bytes of its shards, ``seconds`` of each pass."""

    units: list[EncodedUnit]
    growth: dict[str, Growth]
    num_columns: int
    output: int
    seconds: dict[str, float]

    @property
    def text(self) -> int:
        return sum(unit.text.size for unit in self.units)


class _TimedExecutor(LocalExecutor):
    """Notes how long each pass takes."""

    def __init__(self, num_threads: int | None) -> None:
        super().__init__(num_threads)
        self.seconds: dict[str, float] = defaultdict(float)

    def run(self, work: Work[R], feeds: Sequence[Feed]) -> Generator[R, None, None]:
        start = time.perf_counter()
        yield from super().run(work, feeds)
        self.seconds[work.title] += time.perf_counter() - start


def estimate(config: PreprocessConfig) -> Estimate:
    """Runs every pass on a sample of the input, and tells what all of it would take.

    Raises ConfigError and DataError for what would fail at once in the run itself.
    """
    spec = read_spec(config.dataset)
    check_columns(config, spec)
    plan = make_plan(config, spec, find_sources(config.input))
    check_first_lines(plan)
    threads = LocalExecutor(config.threads).num_threads
    feeds = choose_blocks(plan.sources, max(_MIN_BLOCKS, 2 * threads))
    _run_passes(config, plan, feeds[:1])  # so that compiled code is loaded
    result = _extrapolate(config, plan, threads, _run_passes(config, plan, feeds))
    _log(config, plan, result)
    return result


def choose_blocks(sources: Sequence[Source], num_blocks: int) -> list[TextFeed]:
    """About ``num_blocks`` blocks, at even distances in the text of plain files and at the start of gzip files."""
    plain = [source for source in sources if not source.is_gzip]
    blocks = [(source, block) for source in plain for block in range(max(-(-source.bytes // BLOCK_BYTES), 1))]
    zipped = [source for source in sources if source.is_gzip]
    feeds = [TextFeed(source, BLOCK_BYTES, block, block + 1) for source, block in _spread(blocks, num_blocks)]
    return feeds + [
        TextFeed(source, BLOCK_BYTES, last=_GZIP_BLOCKS) for source in _spread(zipped, num_blocks)
    ]


def _spread(things: Sequence[T], number: int) -> list[T]:
    """About ``number`` of ``things``, at even distances."""
    indices = np.unique(np.linspace(0, max(len(things) - 1, 0), number).round().astype(int))
    return [things[index] for index in indices] if things else []


def _run_passes(config: PreprocessConfig, plan: Plan, feeds: Sequence[TextFeed]) -> _Sampled:
    """Runs the passes on ``feeds`` in a temporary folder, as if the sample were all there is."""
    config = replace(config, rejects=RejectsConfig(max_fraction=1.0))
    executor = _TimedExecutor(config.threads)
    with TemporaryDirectory() as folder:
        plan = replace(plan, output=Path(folder), unit_bytes=BLOCK_BYTES)
        stages = Stages(config, plan, executor, feeds)
        cuts = stages.cut()
        dense, sparse = stages.make_columns(cuts)
        journal, units = stages.encode(cuts, dense, sparse)
        shards = stages.collect_shards(journal, units)
        growth = _growth(plan, units) if config.encoding.kind == "vocab" else {}
    output = sum(shard.bytes for made in shards.values() for _, shard in made)
    return _Sampled(units, growth, len(dense) + len(sparse), output, dict(executor.seconds))


def _growth(plan: Plan, units: Sequence[EncodedUnit]) -> dict[str, Growth]:
    journal = open_journal(plan.output, "study", StudiedUnit)
    sample = []
    for unit in units:
        rows = sum(part.rows for split, part in unit.splits.items() if split in plan.studied)
        if rows:
            sample.append((count_file(journal, journal.load(unit.text.source, unit.text.unit)), rows))
    return fit_growth(plan.spec, sample)


def _extrapolate(config: PreprocessConfig, plan: Plan, threads: int, sampled: _Sampled) -> Estimate:
    sizes = [estimate_text_bytes(source) for source in plan.sources]
    total = sum(sizes)
    scale = total / max(sampled.text, 1)
    rows = _rows(plan, sizes, sampled.units)
    rejects, good = (sum(getattr(unit, key) for unit in sampled.units) for key in ("rejects", "rows"))
    vocabularies = _vocabularies(config, sampled.growth, rows)
    unit_rows = sum(rows.values()) * min(plan.unit_bytes / max(total, 1), 1)
    unit_values = sum(feature.at(unit_rows) for feature in sampled.growth.values())
    num_units = sum(max(-(-size // plan.unit_bytes), 1) for size in sizes)
    row_bytes = 4 * sampled.num_columns + 9
    unit_row_bytes = round(row_bytes * unit_rows)
    return Estimate(
        rows=rows,
        rejected=rejects / max(good + rejects, 1),
        text=total,
        output=round(sampled.output * scale),
        shards=_num_shards(config, plan, num_units, rows),
        work=_work_bytes(plan, rows, row_bytes, num_units, unit_values),
        memory=_memory(plan, threads, total, unit_row_bytes, vocabularies, unit_values),
        seconds={name: seconds * scale for name, seconds in sampled.seconds.items()},
        vocabularies=vocabularies,
        free=shutil.disk_usage(_existing(plan.output)).free,
        threads=threads,
    )


def _rows(plan: Plan, sizes: Sequence[int], units: Sequence[EncodedUnit]) -> dict[str, int]:
    """The rows of each split."""
    rows = {}
    for split in {source.split for source in plan.sources}:
        size = sum(sizes[source.index] for source in plan.sources if source.split == split)
        of_split = [unit for unit in units if plan.sources[unit.text.source].split == split] or units
        text = sum(unit.text.size for unit in of_split)
        rows[split] = size * sum(unit.rows for unit in of_split) / max(text, 1)
    train = rows.get("train", 0.0)
    for split, fraction in plan.fractions.items():
        rows[split] = train * fraction
        rows["train"] -= rows[split]
    return {split: round(rows[split]) for split in plan.splits}


def _vocabularies(
    config: PreprocessConfig, growth: dict[str, Growth], rows: dict[str, int]
) -> dict[str, tuple[int, int]]:
    """Feature → (distinct values, values with an id)."""
    studied = rows.get("train", sum(rows.values()))
    limits = per_column(config.encoding.top_k, list(growth))
    sizes = {}
    for (name, feature), limit in zip(growth.items(), limits, strict=True):
        kept = feature.often(studied, config.encoding.min_count or 1)
        sizes[name] = (feature.at(studied), kept if limit is None else min(kept, limit))
    return sizes


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
    plan: Plan,
    threads: int,
    text: int,
    unit_row_bytes: int,
    vocabularies: dict[str, tuple[int, int]],
    unit_values: int,
) -> int:
    """The peak so far, which has all but the size of units in it, and what that adds."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    # text where it must be held, then the encoded rows of a unit
    holds_text = any(source.is_gzip for source in plan.sources) or (vocabularies and has_strings(plan.spec))
    per_thread = max(min(plan.unit_bytes, text) - BLOCK_BYTES, 0) if holds_text else 0
    if plan.shuffle != "none":
        per_thread += _TABLE_COPIES * unit_row_bytes
    per_thread = max(per_thread, _COUNT_BYTES * unit_values)
    entries = sum(kept for _, kept in vocabularies.values())
    return peak + threads * per_thread + int(entries / TABLE_FILL) * TABLE_BYTES


def _existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _log(config: PreprocessConfig, plan: Plan, estimated: Estimate) -> None:
    splits = ", ".join(f"{name} {rows:,}" for name, rows in estimated.rows.items())
    needed = estimated.output + estimated.work
    passes = ", ".join(f"{name} {duration(seconds)}" for name, seconds in estimated.seconds.items())
    total = sum(estimated.seconds.values())
    lines = [
        f"an estimate, from a sample of the {bytes_text(estimated.text)} of text in {count(len(plan.sources), 'file')}:",
        f"  rows    {sum(estimated.rows.values()):,} ({splits}); {percent(estimated.rejected)} of the lines malformed",
        f"  output  {bytes_text(estimated.output)} in {count(estimated.shards, 'shard')}",
        f"  disk    {bytes_text(needed)} needed on the way, {bytes_text(estimated.free)} free at {plan.output}",
        f"  memory  {bytes_text(estimated.memory)} at the peak",
        f"  time    {duration(total)} with {count(estimated.threads, 'thread')} on this machine ({passes})",
    ]
    lines += _vocabulary_lines(estimated)
    lines += warnings(config, estimated, needed)
    lines.append("nothing was written; next: the same command without dry_run=true")
    logger.info("\n".join(lines))


def _vocabulary_lines(estimated: Estimate) -> list[str]:
    if not estimated.vocabularies:
        return []
    parts = [f"{name} {short(kept)}" for name, (_, kept) in estimated.vocabularies.items()]
    return [f"  ids     {', '.join(parts)}"]


def warnings(config: PreprocessConfig, estimated: Estimate, needed: int) -> list[str]:
    """What will make the run fail, and what to do about it; ``needed``: bytes on disk."""
    lines = []
    if needed > estimated.free:
        lines.append(
            f"warning: that is {bytes_text(needed - estimated.free)} more than there is room for: give another output="
        )
    if estimated.rejected > config.rejects.max_fraction:
        lines.append(
            f"warning: more lines are malformed than rejects.max_fraction={config.rejects.max_fraction} allows: "
            "check dataset= and the files"
        )
    entries = sum(kept for _, kept in estimated.vocabularies.values())
    if int(entries / TABLE_FILL) * TABLE_BYTES > config.memory_gib * 2**30:
        lines.append(
            f"warning: vocabularies of {entries:,} values do not fit in memory_gib={config.memory_gib}: "
            "raise it, or encoding.min_count, or set encoding.top_k"
        )
    return lines
