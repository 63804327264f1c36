"""dlrm-check: reads every value of a dataset once, finds problems and statistics, and formats them as tables.

It checks the files, then all values: types, missing values, labels, ids within tables, finite dense values.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.checksums import file_difference
from dlrm_app.dataset.arrow import (
    Bags,
    ColumnError,
    numbers_of,
    read_column,
    read_element_weights,
    read_ids,
    read_other_label,
    read_vectors,
    read_weights,
    refuse_wrong,
)
from dlrm_app.dataset.encoding_files import encoding_file_problems
from dlrm_app.dataset.label_counts import LabelSums, count_labels, label_counts
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.shard_files import SUGGESTION, row_group_difference
from dlrm_app.dataset.shard_sources import bring
from dlrm_app.dataset.splits import Shard
from dlrm_app.encoding.dense import is_target
from dlrm_app.errors import DataError, Problem
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.logs.rejects import REJECTS
from dlrm_app.machine import num_cores
from dlrm_app.progress import work_bar
from dlrm_app.records import as_json, leaves
from dlrm_app.text import count
from dlrm_app.tools.checking.distributions import (
    DenseValues,
    Popularity,
    RowHashes,
    countable_columns,
    hash_rows,
)
from dlrm_app.tools.checking.findings import Findings

logger = logging.getLogger(__name__)


def check_dataset(folder: Path, *, num_threads: int | None = None, memory_gib: float = 2) -> Findings:
    """Reads all of the dataset in ``folder``."""
    manifest = read_manifest(folder)
    start = time.perf_counter()
    threads = num_threads or num_cores()
    problems, whole = _check_files(manifest, threads)
    findings = _scan(manifest, whole, threads, int(memory_gib * 2**30))
    findings.problems = [*problems, *findings.problems]
    rows = sum(split.rows for split in manifest.splits.values())
    logger.info(f"{rows:,} rows read in {time.perf_counter() - start:.1f} s")
    return findings


def conclude(findings: Findings) -> Findings:
    """``findings`` of an intact dataset. Otherwise logs them, and raises DataError naming every problem."""
    if findings.problems:
        logger.info("%s\n", findings)
        rule = f"has {count(len(findings.problems), 'problem')}"
        raise DataError(Problem(str(findings.manifest.folder), rule, SUGGESTION), *findings.problems)
    return findings


def _check_files(manifest: Manifest, num_threads: int) -> tuple[list[Problem], set[str]]:
    """Checks the files. Returns (every problem, the paths of the intact shards)."""
    shards, whole = manifest.shards, set()
    problems: list[Problem] = []
    with work_bar(desc="checksums", total=sum(s.bytes for s in shards), unit="B", unit_scale=True) as bar:
        found = map_in_order(lambda s: _shard_problem(manifest.folder, s), shards, num_threads, num_threads)
        for shard, problem in zip(shards, found, strict=True):
            bar.update(shard.bytes)
            if problem:
                problems.append(problem)
            else:
                whole.add(shard.path)
    problems += encoding_file_problems(manifest)
    expected = sum(split.rejects for split in manifest.splits.values())
    rejects = manifest.folder / REJECTS
    num_lines = 0
    if rejects.is_file():
        with rejects.open("rb") as file:
            num_lines = sum(1 for _ in file)
    if num_lines != expected:
        rule = f"holds {count(num_lines, 'line')}, the manifest says that {expected:,} were left out"
        problems.append(Problem(REJECTS, rule))
    return problems, whole


def _shard_problem(folder: Path, shard: Shard) -> Problem | None:
    path = folder / shard.path
    try:
        bring(folder, shard)
        difference = file_difference(path, shard.bytes, shard.checksum)
        return difference or row_group_difference(pq.read_metadata(path), path, shard)
    except (OSError, pa.ArrowException) as error:
        return Problem(str(path), f"cannot be read ({error})")
    except DataError as error:  # cannot be brought
        return error.problems[0]


@dataclass(frozen=True)
class _RowGroup:
    split: str
    shard: Shard
    index: int

    @property
    def rows(self) -> int:
        return self.shard.row_groups[self.index]


@dataclass
class _Values:
    """The columns of a row group, without those that have a fault.

    labels uint8 [R], the sum of the weights, the counts of other labels, dense float32 [R] each, ids int32 [R] each,
    or Bags of lists, bits of the weights of their elements, hashes of rows uint64 [R].
    """

    labels: NDArray[np.uint8] | None = None
    weight: float = 0.0
    label_counts: LabelSums = ()
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    ids: dict[str, NDArray[np.int32] | Bags] = field(default_factory=dict)
    element_weights: list[Bags] = field(default_factory=list)
    hashes: NDArray[np.uint64] | None = None
    faults: list[ColumnError] = field(default_factory=list)

    @contextmanager
    def keep_fault(self) -> Iterator[None]:
        """Keeps the first fault of the block, which reads a column."""
        try:
            yield
        except ColumnError as error:
            self.faults.append(error)


def _read(manifest: Manifest, group: _RowGroup) -> _Values:
    values = _Values()
    try:
        with pq.ParquetFile(manifest.folder / group.shard.path) as file:
            table = file.read_row_group(group.index, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        values.faults.append(ColumnError("all", f"row group {group.index} cannot be decoded: {error}"))
        return values
    if manifest.label is not None and manifest.splits[group.split].positives is not None:
        with values.keep_fault():
            clicks = numbers_of(read_column(table, manifest.label, pa.uint8()))
            refuse_wrong(clicks[clicks > 1], manifest.label, "labels are neither 0 nor 1")
            values.labels = clicks
        weights, others = np.ones(group.rows, np.float32), []
        if manifest.weight:
            with values.keep_fault():
                weights = read_weights(table, manifest.weight)
                values.weight = float(weights.sum(dtype=np.float64))
        for label in manifest.other_labels:
            with values.keep_fault():
                others.append(read_other_label(table, label.name))
        if others and values.labels is not None and not values.faults:
            counts = count_labels(manifest.labels, values.labels, np.stack(others), weights)
            values.label_counts = counts.tolist()
    for dense in manifest.dense:
        with values.keep_fault():
            numbers = numbers_of(read_column(table, dense.name, pa.float32()))
            refuse_wrong(numbers[~np.isfinite(numbers)], dense.name, "values are not finite")
            values.dense[dense.name] = numbers
    for sparse in manifest.sparse:
        with values.keep_fault():
            values.ids[sparse.name] = ids = read_ids(table, sparse)
            if sparse.weights and isinstance(ids, Bags):
                values.element_weights.append(read_element_weights(table, sparse, ids))
    vectors = []
    for column in manifest.vectors:
        with values.keep_fault():
            vectors += [*np.ascontiguousarray(read_vectors(table, column).T)]
    if not values.faults:
        # target columns are left out: they differ between equal rows of train in different folds, and of val
        compared = [values.dense[column.name] for column in manifest.dense if not is_target(column)]
        columns = [*compared, *vectors, *values.ids.values(), *values.element_weights]
        values.hashes = hash_rows(columns, group.rows)
    return values


def _scan(manifest: Manifest, whole: set[str], num_threads: int, memory_bytes: int) -> Findings:
    """Reads the shards in ``whole``. Half of ``memory_bytes`` is for counters, half for the rows' hashes."""
    splits = manifest.splits
    studied = ["train"] if "train" in splits else list(splits)
    findings = Findings(manifest, studied, {column.name: DenseValues() for column in manifest.dense})
    groups = [
        _RowGroup(name, shard, index)
        for name, split in splits.items()
        for shard in split.shards
        if shard.path in whole
        for index in range(len(shard.row_groups))
    ]
    # the studied splits come first, so that unseen ids of the others can be counted
    groups.sort(key=lambda group: group.split not in studied)
    findings.sparse = {
        column.name: Popularity(column) for column in countable_columns(manifest.sparse, memory_bytes // 2)
    }
    total = sum(group.rows for group in groups)
    hashes = RowHashes(total, memory_bytes // 2)
    faults: dict[tuple[str, str, str], list[ColumnError]] = defaultdict(list)
    with work_bar(desc="reading", total=total, unit=" rows", unit_scale=True) as bar:
        read = map_in_order(lambda group: _read(manifest, group), groups, num_threads, num_threads)
        for group, values in zip(groups, read, strict=True):
            for fault in values.faults:
                faults[group.shard.path, fault.column, fault.rule].append(fault)
            if values.hashes is not None:
                hashes.add(group.split, values.hashes)
            _add(findings, group, values)
            bar.update(group.rows)
    for (path, column, rule), same in faults.items():
        together = ColumnError(column, rule, sum(fault.count for fault in same), same[0].example)
        findings.problems.append(Problem(path, f"is wrong in {together}"))
    findings.overlap = hashes.overlaps({name: findings.rows[name] for name in splits})
    if not findings.problems and all(shard.path in whole for shard in manifest.shards):
        findings.problems = _disagreements(findings)
    return findings


def _add(findings: Findings, group: _RowGroup, values: _Values) -> None:
    findings.rows[group.split] += group.rows
    findings.positives[group.split] += 0 if values.labels is None else int(values.labels.sum())
    findings.weights[group.split] += values.weight
    findings.labels[group.split].append(values.label_counts)
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


def _disagreements(findings: Findings) -> list[Problem]:
    problems = []
    rows = sum(findings.rows[name] for name in findings.studied)
    for name, split in findings.manifest.splits.items():
        positives = findings.positives[name]
        if split.positives is not None and positives != split.positives:
            rule = f"has {positives:,} positives, the manifest says {split.positives:,}"
            problems.append(Problem(f"the {name} split", rule, "preprocess again"))
        problems += _label_disagreements(findings, name)
        found, expected = findings.weights[name], split.weights.all if split.weights else 0.0
        if not math.isclose(found, expected, rel_tol=1e-6):
            rule = f"has rows of weight {found:g}, the manifest says {expected:g}"
            problems.append(Problem(f"the {name} split", rule, "preprocess again"))
    for column in findings.manifest.sparse:
        # of a column that looks vectors up, values without a vector count as missing too
        if column.encoding.get("missing_id") != 0 or {"multi_hot", "vectors"} & {*column.encoding}:
            continue
        if not column.multi_hot and column.name not in findings.sparse:
            continue
        missing = (
            findings.empty_lists[column.name] if column.multi_hot else findings.sparse[column.name].missing
        )
        expected = round(column.missing_rate * rows)
        if missing != expected:
            rule = f"is missing in {missing:,} of {rows:,} rows, the manifest says in {expected:,}"
            problems.append(Problem(f"column {column.name}", rule, "preprocess again"))
    return problems


def _label_disagreements(findings: Findings, name: str) -> list[Problem]:
    manifest = findings.manifest
    is_weighted, is_sampled = manifest.is_weighted, manifest.kept_share(name) < 1
    parts = findings.labels[name]
    found = label_counts(manifest.labels, parts, is_weighted=is_weighted, is_sampled=is_sampled)
    problems = []
    for label, expected in manifest.splits[name].labels.items():
        counted = found[label] if expected.where_given else replace(found[label], where_given=None)
        read, written = (dict(leaves(as_json(each))) for each in (counted, expected))
        for key in {**read, **written}:
            if not math.isclose(read.get(key, 0), written.get(key, 0), rel_tol=1e-6):
                rule = f"has {read.get(key, 0):,} {key} of {label}, the manifest says {written.get(key, 0):,}"
                problems.append(Problem(f"the {name} split", rule, "preprocess again"))
    return problems
