"""One look at every value of a dataset: what is wrong with it, and what is in it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from dlrm_app.check.dense_values import DenseValues
from dlrm_app.check.id_counts import Popularity, Slice, SliceCounts, make_rounds
from dlrm_app.check.overlap import Overlap, RowNumbers, hash_rows, overlaps
from dlrm_app.check.row_groups import RowGroup, Values, read_row_group, whole_row_groups
from dlrm_app.dataset.column_rules import ColumnError
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.loader.prefetch import map_in_order

_R = TypeVar("_R")


@dataclass
class Findings:
    """What the values of a dataset say. ``studied`` splits are those that features are described by: train if any."""

    manifest: Manifest
    studied: list[str]
    dense: dict[str, DenseValues]
    sparse: dict[str, Popularity]
    lookups: dict[str, Counter[str]]
    """feature → split → ids read there."""
    clicks: dict[str, list[tuple[int, int]]]
    """split → (rows, positives) of its row groups, in order."""
    empty_lists: Counter[str] = field(default_factory=Counter)
    overlap: dict[str, Overlap] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def unseen_share(self, feature: str, split: str) -> float:
        """The share of a split's lookups that go to ids which the studied splits do not have."""
        return self.sparse[feature].unseen[split] / max(self.lookups[feature][split], 1)


def scan(manifest: Manifest, whole: set[str], num_threads: int, memory_bytes: int) -> Findings:
    """Reads the shards in ``whole``; half of ``memory_bytes`` is for counters, half for the rows' hashes."""
    studied = ["train"] if "train" in manifest.splits else list(manifest.splits)
    findings = Findings(
        manifest,
        studied,
        {column.name: DenseValues() for column in manifest.dense},
        {column.name: Popularity() for column in manifest.sparse},
        {column.name: Counter() for column in manifest.sparse},
        {name: [] for name in manifest.splits},
    )
    # the studied splits come first: only then is it known which ids of the others were never seen
    groups = sorted(whole_row_groups(manifest, whole), key=lambda group: group.split not in studied)
    first_slices, *others = make_rounds(manifest.sparse, memory_bytes // 2)
    numbers = RowNumbers(sum(group.rows for group in groups), memory_bytes // 2, manifest.folder)
    try:
        _count_ids(findings, first_slices, _look_at_all(manifest, groups, findings, numbers, num_threads))
        for slices in others:
            _count_ids(findings, slices, _read_again(manifest, groups, slices, num_threads))
        labelled = [name for name, split in manifest.splits.items() if split.positives is not None]
        rows = {name: sum(rows for rows, _ in findings.clicks[name]) for name in manifest.splits}
        findings.overlap = overlaps(numbers.count(), rows, labelled)
    finally:
        numbers.close()
    findings.problems += _disagreements(manifest, findings, groups, whole)
    return findings


def _count_ids(
    findings: Findings, slices: Sequence[Slice], row_groups: Iterator[tuple[RowGroup, Values]]
) -> None:
    """Counts the ids of ``slices`` in all ``row_groups``."""
    counts = [(ids.column.name, SliceCounts(ids)) for ids in slices]
    for group, values in row_groups:
        for name, counter in counts:
            if name not in values.ids:
                continue
            if group.split in findings.studied:
                counter.add(values.ids[name])
            else:
                findings.sparse[name].unseen[group.split] += counter.unseen(values.ids[name])
    for name, counter in counts:
        counter.put_into(findings.sparse[name])


def _look_at_all(
    manifest: Manifest, groups: Sequence[RowGroup], findings: Findings, numbers: RowNumbers, num_threads: int
) -> Iterator[tuple[RowGroup, Values]]:
    """All columns of all row groups, once everything but their ids is in ``findings`` and ``numbers``."""
    faults: dict[tuple[str, str, str], list[ColumnError]] = defaultdict(list)

    def read(group: RowGroup) -> tuple[Values, NDArray[np.uint64] | None]:
        values = read_row_group(manifest, group, manifest.sparse, with_dense=True)
        return values, hash_rows(values, manifest, group.rows)

    for group, (values, hashes) in _results("reading", read, groups, num_threads):
        for fault in values.faults:
            faults[group.shard.path, fault.column, fault.rule].append(fault)
        positives = int(values.labels.sum()) if values.labels is not None else 0
        findings.clicks[group.split].append((group.rows, positives))
        if hashes is not None:
            numbers.add(group.split, hashes, values.labels)
        for name, ids in values.ids.items():
            findings.lookups[name][group.split] += len(ids)
        if group.split in findings.studied:
            for name, dense in values.dense.items():
                findings.dense[name].add(dense)
            for name, offsets in values.offsets.items():
                findings.empty_lists[name] += int(np.count_nonzero(offsets[1:] == offsets[:-1]))
        yield group, values
    for (path, column, rule), same in faults.items():
        together = ColumnError(column, rule, sum(fault.count for fault in same), same[0].example)
        findings.problems.append(f"{path}: {together}")


def _read_again(
    manifest: Manifest, groups: Sequence[RowGroup], slices: Sequence[Slice], num_threads: int
) -> Iterator[tuple[RowGroup, Values]]:
    """The columns of ``slices``."""
    columns: list[SparseColumn] = list({ids.column.name: ids.column for ids in slices}.values())
    return _results(
        "large tables",
        lambda group: read_row_group(manifest, group, columns, with_dense=False),
        groups,
        num_threads,
    )


def _results(
    title: str, work: Callable[[RowGroup], _R], groups: Sequence[RowGroup], num_threads: int
) -> Iterator[tuple[RowGroup, _R]]:
    """What ``work`` makes of each row group, in their order, under a progress bar."""
    with tqdm(desc=title, total=sum(group.rows for group in groups), unit=" rows", unit_scale=True) as bar:
        for group, result in zip(groups, map_in_order(work, groups, num_threads, num_threads), strict=True):
            yield group, result
            bar.update(group.rows)


def _disagreements(
    manifest: Manifest, findings: Findings, groups: Sequence[RowGroup], whole: set[str]
) -> list[str]:
    """Sums over all values that differ from the manifest's, where all of them could be read."""
    if findings.problems or any(shard.path not in whole for shard in manifest.shards):
        return []
    problems = []
    for name, split in manifest.splits.items():
        positives = sum(count for _, count in findings.clicks[name])
        if split.positives is not None and positives != split.positives:
            problems.append(
                f"{name} has {positives:,} positives, the manifest says {split.positives:,}: preprocess again"
            )
    rows = sum(group.rows for group in groups if group.split in findings.studied)
    for column in manifest.sparse:
        if column.encoding.get("missing_id") != 0 or column.encoding.get("multi_hot"):
            continue
        missing = (
            findings.empty_lists[column.name] if column.multi_hot else findings.sparse[column.name].missing
        )
        expected = round(column.missing_rate * rows)
        if missing != expected:
            problems.append(
                f"{column.name} is missing in {missing:,} of {rows:,} rows, the manifest says in {expected:,}: "
                "preprocess again"
            )
    return problems
