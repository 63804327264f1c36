"""One look at every value of a dataset: what is wrong with it, and what is in it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from dlrm_app.data.manifest import Manifest, SparseColumn
from dlrm_app.preprocess.check.dense_values import DenseValues
from dlrm_app.preprocess.check.id_counts import Popularity, Slice, SliceCounts, make_rounds
from dlrm_app.preprocess.check.ordered import in_order
from dlrm_app.preprocess.check.overlap import Overlap, RowNumbers, hash_rows, overlaps
from dlrm_app.preprocess.check.parts import Fault, Part, Reading, Values, all_parts

_R = TypeVar("_R")


@dataclass
class Findings:
    """What the values of a dataset say. ``studied`` splits are those that features are described by: train if any."""

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


def scan(manifest: Manifest, folder: Path, whole: set[str], num_threads: int, memory_bytes: int) -> Findings:
    """Reads the shards in ``whole``; half of ``memory_bytes`` is for counters, half for the rows' hashes."""
    studied = ["train"] if "train" in manifest.splits else list(manifest.splits)
    findings = Findings(
        studied,
        {column.name: DenseValues() for column in manifest.dense},
        {column.name: Popularity() for column in manifest.sparse},
        {column.name: Counter() for column in manifest.sparse},
        {name: [] for name in manifest.splits},
    )
    # the studied splits come first: only then is it known which ids of the others were never seen
    parts = sorted(all_parts(manifest, whole), key=lambda part: part.split not in studied)
    rounds = make_rounds(manifest.sparse, memory_bytes // 2)
    numbers = RowNumbers(sum(part.rows for part in parts), memory_bytes // 2, folder)
    try:
        _first_round(manifest, folder, parts, rounds[0], findings, numbers, num_threads)
        for slices in rounds[1:]:
            _later_round(manifest, folder, parts, slices, findings, num_threads)
        labelled = [name for name, split in manifest.splits.items() if split.positives is not None]
        rows = {name: sum(rows for rows, _ in findings.clicks[name]) for name in manifest.splits}
        findings.overlap = overlaps(numbers.count(), rows, labelled)
    finally:
        numbers.close()
    findings.problems += _disagreements(manifest, findings, parts, whole)
    return findings


@dataclass(frozen=True)
class _Read:
    values: Values
    hashes: NDArray[np.uint64] | None


def _first_round(
    manifest: Manifest,
    folder: Path,
    parts: Sequence[Part],
    slices: Sequence[Slice],
    findings: Findings,
    numbers: RowNumbers,
    num_threads: int,
) -> None:
    reading = Reading(folder, manifest, True, manifest.sparse)
    faults: dict[tuple[str, str, str], list[Fault]] = defaultdict(list)

    def read(part: Part) -> _Read:
        values = reading.read(part)
        return _Read(values, hash_rows(values, manifest, part.rows))

    counts = [(part, SliceCounts(part)) for part in slices]
    for part, found in _bar("reading", in_order(read, parts, num_threads), parts):
        values = found.values
        for fault in values.faults:
            faults[part.shard.path, fault.column, fault.rule].append(fault)
        positives = int(values.labels.sum()) if values.labels is not None else 0
        findings.clicks[part.split].append((part.rows, positives))
        if found.hashes is not None:
            numbers.add(part.split, found.hashes, values.labels)
        for name, ids in values.ids.items():
            findings.lookups[name][part.split] += len(ids)
        if part.split in findings.studied:
            for name, numbers_of in values.dense.items():
                findings.dense[name].add(numbers_of)
            for name, ends in values.ends.items():
                findings.empty_lists[name] += int(np.count_nonzero(ends[1:] == ends[:-1]))
        _tally(part, values, counts, findings)
    _put(counts, findings)
    findings.problems += [_describe(path, found) for (path, _, _), found in faults.items()]


def _describe(path: str, faults: Sequence[Fault]) -> str:
    """All faults of one kind in one column of a shard."""
    first, total = faults[0], sum(fault.count for fault in faults)
    number = f"{total:,} " if total else ""
    example = f", such as {first.example}" if first.example else ""
    return f"{path}: column {first.column}: {number}{first.rule}{example}"


def _later_round(
    manifest: Manifest,
    folder: Path,
    parts: Sequence[Part],
    slices: Sequence[Slice],
    findings: Findings,
    num_threads: int,
) -> None:
    columns: list[SparseColumn] = list({part.column.name: part.column for part in slices}.values())
    reading = Reading(folder, manifest, False, columns)
    counts = [(part, SliceCounts(part)) for part in slices]
    for part, values in _bar("large tables", in_order(reading.read, parts, num_threads), parts):
        _tally(part, values, counts, findings)
    _put(counts, findings)


def _tally(
    part: Part, values: Values, counts: Sequence[tuple[Slice, SliceCounts]], findings: Findings
) -> None:
    for where, counter in counts:
        name = where.column.name
        ids = values.ids.get(name)
        if ids is None:
            continue
        if part.split in findings.studied:
            counter.add(ids)
        else:
            findings.sparse[name].unseen[part.split] += counter.unseen(ids)


def _put(counts: Sequence[tuple[Slice, SliceCounts]], findings: Findings) -> None:
    for where, counter in counts:
        counter.put_into(findings.sparse[where.column.name])


def _bar(name: str, found: Iterator[tuple[Part, _R]], parts: Sequence[Part]) -> Iterator[tuple[Part, _R]]:
    with tqdm(desc=name, total=sum(part.rows for part in parts), unit=" rows", unit_scale=True) as bar:
        for part, result in found:
            yield part, result
            bar.update(part.rows)


def _disagreements(
    manifest: Manifest, findings: Findings, parts: Sequence[Part], whole: set[str]
) -> list[str]:
    """Sums over all values that differ from the manifest's, where all of them could be read."""
    if findings.problems or any(
        s.path not in whole for split in manifest.splits.values() for s in split.shards
    ):
        return []
    problems = []
    for name, split in manifest.splits.items():
        positives = sum(count for _, count in findings.clicks[name])
        if split.positives is not None and positives != split.positives:
            problems.append(
                f"{name} has {positives:,} positives, the manifest says {split.positives:,}: preprocess again"
            )
    rows = sum(part.rows for part in parts if part.split in findings.studied)
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
