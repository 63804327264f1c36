"""dlrm-check's job: one look at every value of a dataset, to see what is wrong with it and what is in it."""

import logging
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlrm_app.check.distributions import DenseValues, Popularity, fitting
from dlrm_app.check.overlap import Overlap, RowNumbers, hash_rows
from dlrm_app.check.shards import RowGroup, Values, check_files, read_row_group
from dlrm_app.dataset.arrow import Bags, ColumnError
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.shard_files import SUGGESTION
from dlrm_app.errors import DataError
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.preprocess.finish import next_command
from dlrm_app.preprocess.units.executor import num_cores
from dlrm_app.progress import work_bar
from dlrm_app.text import bullets, count

logger = logging.getLogger(__name__)


@dataclass
class Findings:
    """The contents of a dataset. ``studied`` splits are those that features are described by: train if any."""

    manifest: Manifest
    studied: list[str]
    dense: dict[str, DenseValues]
    sparse: dict[str, Popularity] = field(default_factory=dict)
    """Of the features whose ids could be counted in memory."""
    lookups: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(feature, split) → ids read there."""
    unseen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(feature, split) → lookups there of ids that the studied splits do not have."""
    clicks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """split → (rows, positives) of its row groups, in order."""
    empty_lists: Counter[str] = field(default_factory=Counter)
    overlap: dict[str, Overlap] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """``everything is …``, or the number of problems."""
        if not self.problems:
            return "everything is as the manifest says"
        return f"{count(len(self.problems), 'problem')} found"

    def totals(self, split: str) -> tuple[int, int]:
        """(rows, positives) read of a split."""
        return sum(rows for rows, _ in self.clicks[split]), sum(clicks for _, clicks in self.clicks[split])

    def unseen_share(self, feature: str, split: str) -> float | None:
        """The share of a split's lookups that go to ids which the studied splits do not have; None if not counted."""
        if feature not in self.sparse:
            return None
        return self.unseen[feature, split] / max(self.lookups[feature, split], 1)


def check_dataset(folder: Path, *, num_threads: int | None = None, memory_gib: float = 2) -> Findings:
    """Reads all of the dataset in ``folder``."""
    manifest = read_manifest(folder)
    start = time.perf_counter()
    threads = num_threads or num_cores()
    problems, whole = check_files(manifest, threads)
    findings = _scan(manifest, whole, threads, int(memory_gib * 2**30))
    findings.problems = [*problems, *findings.problems]
    rows = sum(split.rows for split in manifest.splits.values())
    logger.info(f"{rows:,} rows read in {time.perf_counter() - start:.1f} s")
    return findings


def conclude(findings: Findings) -> None:
    """Logs that the dataset is whole and what comes next. Raises DataError naming every problem."""
    folder = findings.manifest.folder
    if findings.problems:
        raise DataError(f"{folder}: {findings.verdict}; {SUGGESTION}:\n{bullets(findings.problems)}")
    logger.info(f"{folder}: {findings.verdict}\n{next_command(findings.manifest)}")


def _scan(manifest: Manifest, whole: set[str], num_threads: int, memory_bytes: int) -> Findings:
    """Reads the shards in ``whole``; half of ``memory_bytes`` is for counters, half for the rows' numbers."""
    splits = manifest.splits
    studied = ["train"] if "train" in splits else list(splits)
    findings = Findings(manifest, studied, {column.name: DenseValues() for column in manifest.dense})
    groups = [
        RowGroup(name, shard, index)
        for name, split in splits.items()
        for shard in split.shards
        if shard.path in whole
        for index in range(len(shard.row_groups))
    ]
    # the studied splits come first: only then is it known which ids of the others were never seen
    groups.sort(key=lambda group: group.split not in studied)
    findings.sparse = {
        column.name: Popularity(column) for column in fitting(manifest.sparse, memory_bytes // 2)
    }
    findings.clicks = {name: [] for name in splits}
    numbers = RowNumbers(sum(group.rows for group in groups), memory_bytes // 2)
    faults: dict[tuple[str, str, str], list[ColumnError]] = defaultdict(list)

    def read(group: RowGroup) -> tuple[Values, NDArray[np.uint64] | None]:
        values = read_row_group(manifest, group)
        return values, hash_rows(values, manifest, group.rows)

    with work_bar(
        desc="reading", total=sum(group.rows for group in groups), unit=" rows", unit_scale=True
    ) as bar:
        read_groups = map_in_order(read, groups, num_threads, num_threads)
        for group, (values, hashes) in zip(groups, read_groups, strict=True):
            for fault in values.faults:
                faults[group.shard.path, fault.column, fault.rule].append(fault)
            if hashes is not None:
                numbers.add(group.split, hashes, values.labels)
            _add(findings, group, values)
            bar.update(group.rows)
    for (path, column, rule), same in faults.items():
        together = ColumnError(column, rule, sum(fault.count for fault in same), same[0].example)
        findings.problems.append(f"{path}: {together}")
    labelled = [name for name, split in splits.items() if split.positives is not None]
    findings.overlap = numbers.overlaps({name: findings.totals(name)[0] for name in splits}, labelled)
    if not findings.problems and all(shard.path in whole for shard in manifest.shards):
        findings.problems = _disagreements(findings)
    return findings


def _add(findings: Findings, group: RowGroup, values: Values) -> None:
    """Adds a row group to what is counted of columns."""
    positives = 0 if values.labels is None else int(values.labels.sum())
    findings.clicks[group.split].append((group.rows, positives))
    is_studied = group.split in findings.studied
    for name, column in values.ids.items():
        ids = column.values if isinstance(column, Bags) else column
        findings.lookups[name, group.split] += len(ids)
        if is_studied and isinstance(column, Bags):
            findings.empty_lists[name] += int(np.count_nonzero(np.diff(column.offsets) == 0))
        if name in findings.sparse and is_studied:
            findings.sparse[name].add(ids)
        elif name in findings.sparse:
            findings.unseen[name, group.split] += findings.sparse[name].unseen(ids)
    if is_studied:
        for name, dense in values.dense.items():
            findings.dense[name].add(dense)


def _disagreements(findings: Findings) -> list[str]:
    """Sums over all values that differ from the manifest's."""
    problems = []
    rows = sum(findings.totals(name)[0] for name in findings.studied)
    for name, split in findings.manifest.splits.items():
        _, positives = findings.totals(name)
        if split.positives is not None and positives != split.positives:
            problems.append(
                f"{name} has {positives:,} positives, the manifest says {split.positives:,}: preprocess again"
            )
    for column in findings.manifest.sparse:
        if column.encoding.get("missing_id") != 0 or column.encoding.get("multi_hot"):
            continue
        if column.multi_hot:
            missing = findings.empty_lists[column.name]
        elif column.name in findings.sparse:
            missing = findings.sparse[column.name].missing
        else:
            continue
        expected = round(column.missing_rate * rows)
        if missing != expected:
            problems.append(
                f"{column.name} is missing in {missing:,} of {rows:,} rows, the manifest says in {expected:,}: "
                "preprocess again"
            )
    return problems
