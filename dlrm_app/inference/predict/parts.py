"""Divides the rows to score into parts. A process takes a part at a time; a written part is not scored again.

Parts are row groups of a dataset, or units of raw files as in preprocessing, encoded like the rows of training.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader, verify_shards
from dlrm_app.dataset.splits import Shard, ValueCounts
from dlrm_app.encoding.encoder import Encoder
from dlrm_app.encoding.own_clicks import learnt_rows
from dlrm_app.encoding.row_hash import content_hashes
from dlrm_app.encoding.row_samples import RowSample
from dlrm_app.encoding.value_shares import ValueCounter, add_up
from dlrm_app.errors import ConfigError, DataError, Problem, refuse_if
from dlrm_app.inference.predict.candidates import candidate_problems, encoded_candidates, not_lists, separated
from dlrm_app.inference.raw_rows import CHUNK_ROWS
from dlrm_app.journal import numbered
from dlrm_app.loader.reader import TableReader, when_brought
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.beginning import source_spec
from dlrm_app.logs.first_rows import warn_of_odd_columns
from dlrm_app.logs.parquet_columns import names_of, parquet_spec, refuse_other_types, run_ids_in
from dlrm_app.logs.raw_columns import RawColumns
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.logs.rejects import RejectedLine
from dlrm_app.logs.sources.feeds import InputUnit, unit_feeds
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.lake import is_table
from dlrm_app.logs.sources.parquet_units import ParquetUnit, read_footers, schema_of
from dlrm_app.logs.sources.source import InputFile, drop_beginnings, each_source
from dlrm_app.logs.sources.units import unit_name
from dlrm_app.logs.spec import Cures, Spec
from dlrm_app.text import listed

_CURES = Cures(
    "labels=false",
    "write them as in the files of training",
    "leave it out",
    "add the names above it",
    "a model of a dataset made with input.by_position=true",
    "write them without quotes, as in the files of training",
)
NUMBER, KEPT, LENGTH = "number", "keep:", "length"
"""The column with a row's place in its part (line or row, from 0); the prefix of columns kept from the input; the
column with the number of a row's candidates, which have a score each.
"""
Chunk = tuple[pa.Table, pa.Table]
"""(encoded rows with a dataset's columns, columns to write beside their scores: number, kept columns, length)."""


MAX_REJECTS = 5
"""The number of rejected lines of a part whose reasons are kept."""


@dataclass(frozen=True)
class RejectedRow:
    """A rejected line. ``line``: its number within the part, from 0."""

    line: int
    reason: str


@dataclass
class PartTally:
    """Counts of a part: ``num_lines`` lines or rows of file or shard ``origin``, from line ``first_number`` on.

    ``num_rejects`` lines are left out; ``rejects`` are the first of them.
    """

    origin: str
    first_number: int
    num_lines: int = 0
    num_rejects: int = 0
    rejects: list[RejectedRow] = field(default_factory=list)
    num_sampled: int = 0
    num_learnt: int = 0
    """Rows whose own clicks are in the model's target columns, among ``num_sampled`` of a sample."""
    values: dict[str, ValueCounts] = field(default_factory=dict)
    """Column → the counts of its values, of raw rows."""

    def leave_out(self, rejects: Sequence[RejectedLine]) -> None:
        self.num_rejects += len(rejects)
        room = MAX_REJECTS - len(self.rejects)
        self.rejects += [RejectedRow(reject.line, reject.reason) for reject in rejects[:room]]


class Part(NamedTuple):
    """A part. Names sort in the order of the rows. ``read`` yields the chunks and fills the tally."""

    name: str
    tally: PartTally
    read: Callable[[PartTally], Iterator[Chunk]]


class DatasetParts:
    """Parts of a dataset's ``split``, for ``reader``. Raises DataError if the split or one of its files is missing."""

    def __init__(self, manifest: Manifest, split: str, reader: TableReader) -> None:
        if split not in manifest.splits:
            rule = f"has no {split} split, only {', '.join(manifest.splits)}"
            raise DataError(Problem(str(manifest.path), rule, "give split="))
        verify_shards(manifest)
        self._shards, self._values = manifest.splits[split].shards, manifest.splits[split].values
        has_labels = manifest.label is not None and manifest.splits[split].positives is not None
        self._reader = ShardReader(manifest.folder, reader.columns(has_labels))
        self.identity = {"dataset": manifest.fingerprint(), "split": split}
        self.origin_names = ("shard", "row")

    def parts(self, is_wanted: Callable[[str, int], bool]) -> Iterator[Part]:
        """Yields the parts for which ``is_wanted(name, number)``."""
        groups = [
            (shard, index, group)
            for index, shard in enumerate(self._shards)
            for group in range(len(shard.row_groups))
        ]
        wanted = (each for number, each in enumerate(groups) if is_wanted(numbered(each[1], each[2]), number))
        for shard, index, group in when_brought(self._reader, wanted, lambda each: each[0]):
            tally = PartTally(shard.path, 0, shard.row_groups[group])
            yield Part(numbered(index, group), tally, partial(self._read, shard, group))

    def values(self, _: Sequence[PartTally]) -> dict[str, ValueCounts]:
        """Column → the counts of its values, if preprocessing has counted them."""
        return self._values

    def _read(self, shard: Shard, group: int, _: PartTally) -> Iterator[Chunk]:
        table = self._reader.read(shard, group)
        yield table, pa.table({NUMBER: array_of(np.arange(len(table)))})


def raw_spec(manifest: Manifest) -> Spec:
    """The format of the files that the dataset of ``manifest`` was made from, without weights, which scoring ignores.

    Raises DataError if the manifest does not have it.
    """
    if "dataset" not in manifest.config:
        rule = "was not made from raw logs, so their format is not known"
        raise DataError(Problem(str(manifest.path), rule, "give data.path=, an encoded dataset"))
    crosses = manifest.config.get("encoding", {}).get("crosses")
    spec = read_spec(DatasetConfig(**manifest.config["dataset"]), crosses).without_unused_times()
    by_position = bool(manifest.config.get("input", {}).get("by_position"))
    return replace(spec.without_weight(), by_position=by_position)


class RawParts:
    """Parts of the files ``given`` (a path, a glob, a list), encoded according to ``manifest``.

    ``labels``: True if their label column is read; None reads it if it exists. ``keep``: other columns of Parquet files
    to write beside the scores. ``candidates``: columns of Parquet files with a list in each row, whose items are scored
    each; labels are not read then. Raises DlrmError.
    """

    def __init__(
        self,
        given: str | Sequence[str],
        labels: bool | None,
        manifest: Manifest,
        unit_bytes: int,
        keep: Sequence[str] = (),
        candidates: Sequence[str] = (),
    ) -> None:
        self._spec = raw_spec(manifest)
        refuse_if(candidate_problems(candidates, self._spec))
        self._candidates = list(candidates)
        self._manifest = manifest
        self._unit_bytes = unit_bytes
        self._labels = False if candidates else labels
        self._keep = {f"{KEPT}{name}": name for name in keep}
        sources = find_files("input", given, self._spec.quoting)
        read_footers(sources)
        self._files = each_source(self._with_spec, sources)
        drop_beginnings(sources)
        refuse_other_types(*zip(*self._files, strict=True))
        mixed = {spec.label is not None for _, spec in self._files}
        if len(mixed) > 1:
            cure = "score them separately"
            raise ConfigError(Problem("input", "has files with a label column and files without one", cure))
        self.identity = {
            "files": [[source.path, *source.version] for source, _ in self._files],
            "columns": manifest.fingerprint(),
            "labels": mixed == {True},
            "unit_bytes": unit_bytes,
            "keep": list(keep),
            "tables": [name for name in ([given] if isinstance(given, str) else given) if is_table(name)],
            **({"candidates": self._candidates} if candidates else {}),
        }
        self.origin_names = ("file", "line")
        self._first_line = 2 if self._spec.header else 1

    @property
    def learnt(self) -> RowSample | None:
        """A sample of the training rows whose clicks are in the model's target columns."""
        return learnt_rows(self._manifest.dense, self._manifest.folder)

    def values(self, tallies: Sequence[PartTally]) -> dict[str, ValueCounts]:
        """Column → the counts of its values in the parts of ``tallies``."""
        return add_up(tally.values for tally in tallies)

    def warn_of_odd_columns(self) -> None:
        """Logs columns whose first rows cannot be as the model's dataset was described."""
        if not self._candidates:  # which are described as single values
            warn_of_odd_columns(self._files)

    def _with_spec(self, source: InputFile) -> tuple[InputFile, Spec]:
        of_parquet = {"keep": [*self._keep.values()], "candidates": self._candidates}
        rule = f"is for Parquet, {source.path} is text"
        if source.format != "parquet":
            refuse_if(
                [Problem(f"{k}={names}", rule, "leave it out") for k, names in of_parquet.items() if names]
            )
        find_spec = parquet_spec if source.format == "parquet" else source_spec
        spec = find_spec(source, separated(self._spec, self._candidates, "|"), self._labels, _CURES)
        if self._candidates:
            stored = names_of(source, spec)
            refuse_if(not_lists(source.path, schema_of(source), [stored[name] for name in self._candidates]))
            spec = separated(spec, self._candidates, None)
        names = run_ids_in(source) if self._keep else []
        refuse_if(
            [
                Problem(
                    f"keep={name}", f"is not a column of {source.path}", f"use one of {listed(names, 12)}"
                )
                for name in self._keep.values()
                if name not in names
            ]
        )
        return source, spec

    def parts(self, is_wanted: Callable[[str, int], bool]) -> Iterator[Part]:
        """Yields the parts for which ``is_wanted(name, number)``."""
        for source, spec in self._files:
            yield from self._parts_of(source, spec, is_wanted)

    def _parts_of(
        self, source: InputFile, spec: Spec, is_wanted: Callable[[str, int], bool]
    ) -> Iterator[Part]:
        is_parquet = source.format == "parquet"
        columns = {**names_of(source, spec), **self._keep} if is_parquet else {}

        def is_mine(unit: int) -> bool:
            return is_wanted(unit_name(source.index, unit), source.index + unit)

        for feed in unit_feeds(source, columns, self._unit_bytes, is_mine):
            for unit in feed.items():
                if is_mine(unit.unit):
                    tally = PartTally(source.path, 1 if is_parquet else self._first_line)
                    yield Part(unit.name, tally, partial(self._encode, unit, spec))

    def _encode(self, unit: InputUnit, spec: Spec, tally: PartTally) -> Iterator[Chunk]:
        manifest = self._manifest
        encoder = Encoder(spec, manifest.dense, manifest.sparse, manifest.folder, vectors=manifest.vectors)
        counter = ValueCounter(manifest.dense, manifest.sparse, manifest.vectors)
        learnt = self.learnt

        def encode(raw: RawColumns | None) -> pa.Table:
            if raw is None:
                return encoder.schema.empty_table()
            if learnt is not None:
                known = learnt.count_of(content_hashes(raw, spec))
                tally.num_sampled += known.rows
                tally.num_learnt += known.known
            encoded = encoder.encode(raw, counts_unseen=True)
            counter.add(encoded)
            return encoded.table

        if self._candidates:
            assert isinstance(unit, ParquetUnit), "text is refused"
            yield from self._encode_candidates(unit.table, spec, tally, encode)
        else:
            yield from self._encode_rows(unit, spec, tally, encode)
        tally.values = counter.counts()

    def _encode_rows(
        self, unit: InputUnit, spec: Spec, tally: PartTally, encode: Callable[[RawColumns], pa.Table]
    ) -> Iterator[Chunk]:
        cursor = open_cursor(unit, spec)
        for raw in cursor.rows(CHUNK_ROWS, None):
            lines = cursor.row_lines()
            tally.leave_out(cursor.take_rejects())
            columns = {NUMBER: array_of(lines)}
            if isinstance(unit, ParquetUnit):
                columns |= self._kept(unit.table, columns[NUMBER])
            yield encode(raw), pa.table(columns)
        tally.leave_out(cursor.take_rejects())
        tally.num_lines = cursor.line

    def _encode_candidates(
        self, table: pa.Table, spec: Spec, tally: PartTally, encode: Callable[[RawColumns | None], pa.Table]
    ) -> Iterator[Chunk]:
        tally.num_lines = len(table)
        parts = encoded_candidates(table, self._candidates, spec, encode, CHUNK_ROWS)
        for encoded, numbers, lengths, rejects in parts:
            tally.leave_out(rejects)
            columns = {NUMBER: array_of(numbers), LENGTH: array_of(lengths)}
            yield encoded, pa.table(columns | self._kept(table, columns[NUMBER]))

    def _kept(self, table: pa.Table, numbers: pa.Array) -> dict[str, pa.ChunkedArray]:
        """The columns to write beside the scores of rows ``numbers`` of ``table``."""
        return {name: table[name].take(numbers) for name in self._keep}
