"""Which row of a split each score of a file belongs to, by shard and row, or by input file and line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.config.values import SPLITS
from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError, Problem
from dlrm_app.logs.rejects import REJECTS
from dlrm_app.text import listed

PLACES = (("shard", "row"), ("file", "line"))
"""Columns that identify the row of the split that a score belongs to."""


@dataclass(frozen=True, eq=False)
class RowPlaces:
    """The origin of rows: ``columns`` such as shard and row, the names of shards or files, and each row's
    name and number [R].
    """

    columns: tuple[str, ...]
    names: Sequence[str]
    codes: NDArray[np.int64]
    numbers: NDArray[np.int64]

    def are_those_of(self, other: "RowPlaces") -> bool:
        """True if both are the same rows in the same order."""
        return (
            list(self.names) == list(other.names)
            and np.array_equal(self.codes, other.codes)
            and np.array_equal(self.numbers, other.numbers)
        )


def order_rows(
    path: str, table: pa.Table, place: Sequence[str], manifest: Manifest | None, split: str
) -> tuple[NDArray[np.int64], RowPlaces]:
    """(the order that sorts the table's rows as in the split, their places in that order). Without a dataset:
    by names of files.

    Raises DataError unless the places are those of the split's rows, each once.
    """
    encoded = table.column(place[0]).cast(pa.string()).combine_chunks().dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), numbers_of(encoded.indices)
    expected = None
    if manifest is None:
        known = sorted(names)
    else:
        if place[0] == "shard":
            expected = {shard.path: np.arange(shard.rows) for shard in manifest.splits[split].shards}
        else:
            expected = _source_lines(path, manifest, split)
        found = [_known_name(name, expected, is_path=place[0] == "file") for name in names]
        if others := [name for name, known in zip(names, found, strict=True) if known is None]:
            rule = (
                f"has scores of {listed(others)}, which the {split} split of {manifest.path} was not made of"
            )
            cure = f"give scores of its rows, which are in {listed([*expected])}"
            raise DataError(Problem(f"scores={path}", rule, cure))
        known, names = [*expected], [name for name in found if name is not None]
    number = np.array([known.index(name) for name in names], np.int64)[codes]
    rows = numbers_of(table.column(place[1]).cast(pa.int64()))  # refuses what is not whole
    order: NDArray[np.int64] = np.lexsort((rows, number))
    number, rows = number[order], rows[order]
    again = np.flatnonzero((number[1:] == number[:-1]) & (rows[1:] == rows[:-1]))
    if len(again):
        rule = (
            f"has {place[1]} {rows[again[0]]:,} of {known[number[again[0]]]} more than once ({len(again):,} "
            "rows too many)"
        )
        raise DataError(Problem(f"scores={path}", rule, "give one score for each row"))
    if expected is not None:
        _refuse_other_rows(path, place[1], split, expected, number, rows)
    return order, RowPlaces(tuple(place), known, number, rows)


def _known_name(name: str, expected: Mapping[str, object], *, is_path: bool) -> str | None:
    """The equal name in ``expected``, or the only one with the same last part of its path; otherwise None."""
    if name in expected:
        return name
    if not is_path:
        return None
    same_name = [known for known in expected if Path(known).name == Path(name).name]
    return same_name[0] if len(same_name) == 1 else None


def _source_lines(path: str, manifest: Manifest, split: str) -> dict[str, NDArray[np.int64]]:
    """Input file → the lines that became rows of ``split``, in their order; rejected ones are left out.

    Raises DataError if rows cannot be found by their lines: in a shuffled split, and in a dataset that was
    not made of files alone.
    """
    rejected: dict[str, list[int]] = {}
    file = manifest.folder / REJECTS
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        reject = json.loads(line)
        rejected.setdefault(reject["file"], []).append(reject["line"])
    origin = split if any(source.split == split for source in manifest.sources) else "train"
    splits = manifest.splits
    sizes = [
        (name, s.rows + s.rejects + s.left_out) for name, s in splits.items() if name in (origin, *SPLITS)
    ]
    if origin != split:  # the split is a share of train's lines, in the order train, val, test
        first = sum(size for name, size in sizes if SPLITS.index(name) < SPLITS.index(split))
        sizes = [(name, size) for name, size in sizes if name == split]
    else:
        first = 0
    end = first + dict(sizes)[split]
    header = bool(manifest.config.get("dataset", {}).get("header"))
    lines, num_before = {}, 0
    for source in manifest.sources:
        if source.split != origin:
            continue
        out = np.array(rejected.get(source.path, []), np.int64)
        count = source.rows + len(out)
        low, high = max(first - num_before, 0), min(end - num_before, count)
        num_before += count
        if low < high:
            begin = 2 if header and source.checksum.startswith("crc32:") else 1  # Parquet has no header
            lines[source.path] = np.setdiff1d(np.arange(low, high) + begin, out)
    is_shuffled = split == "train" and manifest.config.get("shuffle", "none") != "none"
    # splits that have files of their own are not dealt
    shares = {*manifest.splits} - {source.split for source in manifest.sources}
    is_dealt = origin == "train" and shares and manifest.config.get("split", {}).get("by") == "content"
    if is_shuffled or is_dealt or sum(map(len, lines.values())) != manifest.splits[split].rows:
        rule = f"has file and line, by which the rows of {split} in {manifest.path} cannot be found"
        cure = "give scores with shard and row, as dlrm-predict data.path= writes them"
        raise DataError(Problem(f"scores={path}", rule, cure))
    return lines


def _refuse_other_rows(
    path: str,
    what: str,
    split: str,
    expected: Mapping[str, NDArray[np.int64]],
    number: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> None:
    """Raises DataError naming the first row that is missing, or that the split does not have."""
    for index, (name, wanted) in enumerate(expected.items()):
        given = rows[number == index]
        if np.array_equal(given, wanted):
            continue
        faults = [
            f"{words} {what} {different[0]:,} of {name}"
            for words, different in (
                (f"lacks rows of the {split} split, such as", np.setdiff1d(wanted, given)),
                (f"has rows that {split} does not have, such as", np.setdiff1d(given, wanted)),
            )
            if len(different)
        ]
        cure = "give a score for each row of the split, and no others"
        raise DataError(Problem(f"scores={path}", " and ".join(faults), cure))
