"""Raw rows, encoded as those of training were: units of files as preprocessing cuts them, and lines of requests.

Rows of requests become lines, with separators that no value has, so that one parser reads them and text.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.config.scoring import STANDARD_INPUT
from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, DataError, refuse_all, refuse_if
from dlrm_app.inference.predict.parts import Chunk, Part, ReadPart
from dlrm_app.preprocess.encode.encoder import Encoded, Encoder
from dlrm_app.preprocess.read.arrow_rows import open_cursor
from dlrm_app.preprocess.read.beginning import file_spec, source_spec
from dlrm_app.preprocess.read.parquet_columns import names_in, names_of, parquet_spec, refuse_other_types
from dlrm_app.preprocess.read.parser import Parser, RejectedLine
from dlrm_app.preprocess.read.spec import Column, Spec, read_spec
from dlrm_app.preprocess.units.parquet_units import ParquetFeed, ParquetUnit, UnitRows, units_of
from dlrm_app.preprocess.units.source import Source, find_files
from dlrm_app.preprocess.units.unit_text import PADDING, TextFeed, UnitText, pipe_units
from dlrm_app.text import listed

FIELD, ITEM = "\x1f", "\x1e"
"""Separators of the fields of a row, and of the items of a list."""
BREAKING = frozenset("\x1e\x1f\n\r")
"""Characters that a value cannot hold, in text as here. An item of a list cannot hold the separator of its column either."""


def raw_spec(manifest: Manifest) -> Spec:
    """The format of the files that the dataset of ``manifest`` was made of. Raises DataError where it does not say."""
    if "dataset" not in manifest.config:
        raise DataError(
            f"{manifest.path} was not made of raw logs, so their format is not known: give data.path=, an encoded dataset"
        )
    return read_spec(DatasetConfig(**manifest.config["dataset"]))


def read_columns(spec: Spec) -> list[Column]:
    """The columns that a TextEncoder's lines have, as the raw log has them."""
    return [column for column in spec.columns if column.role != "ignore"]


def text_spec(spec: Spec) -> Spec:
    """``spec`` as a TextEncoder's lines have it: the columns that are read, between separators of their own."""
    columns = tuple(
        column if column.separator is None else replace(column, separator=ITEM)
        for column in read_columns(spec)
    )
    return replace(spec, delimiter=FIELD, quote=None, header=False, columns=columns, order=())


class TextEncoder:
    """Encodes lines of ``spec``, which is one of ``text_spec``, as ``manifest`` says; up to ``capacity`` at a time."""

    def __init__(self, spec: Spec, manifest: Manifest, capacity: int) -> None:
        self._parser = Parser(spec, capacity)
        self._encoder = Encoder(spec, manifest.dense, manifest.sparse, manifest.folder)
        self._capacity = capacity
        self.schema = self._encoder.schema
        """Of the columns that it gives."""

    def encode(self, lines: Sequence[str]) -> tuple[Encoded, NDArray[np.int64], list[RejectedLine]]:
        """(the rows of the well-formed ``lines``, the number of each from 0 on, the lines left out and why)."""
        text = np.frombuffer("\n".join([*lines, ""]).encode("utf-8") + bytes(PADDING), np.uint8)
        stop, at, count = len(text) - PADDING, 0, 0
        rejects: list[RejectedLine] = []
        while at < stop:
            at, num_lines, its_rejects = self._parser.parse(text, at, stop, self._capacity)
            rejects += [reject._replace(line=count + reject.line) for reject in its_rejects]
            count += num_lines
        numbers = without(0, count, [reject.line for reject in rejects])
        return self._encoder.encode(self._parser.take()), numbers, rejects


def without(start: int, stop: int, left_out: Sequence[int]) -> NDArray[np.int64]:
    """range(start, stop) without the numbers ``left_out``."""
    keep = np.ones(stop - start, bool)
    keep[np.array(left_out, np.int64) - start] = False
    return np.arange(start, stop)[keep]


_CHUNK_ROWS = 1 << 15
_UNLABELLED = "labels=false"
_KEPT = "keep:"
"""Before the names of columns that go along, which may be read as well."""


_File = tuple[Source, Spec]


class RawParts:
    """The files ``given`` (a path, a glob, a list, or - for standard input), encoded as ``manifest`` says.

    ``labels``: whether their label column is read; None: where it is there. ``keep``: further columns of Parquet files
    that go along with the scores. Raises DlrmError.
    """

    def __init__(
        self, given: Any, labels: bool | None, manifest: Manifest, unit_bytes: int, keep: Sequence[str] = ()
    ) -> None:
        self._spec = raw_spec(manifest)
        self._manifest = manifest
        self._unit_bytes = unit_bytes
        self._labels = labels
        self._keep = {f"{_KEPT}{name}": name for name in keep}
        self.is_piped = given == STANDARD_INPUT
        self._files: list[_File] = []
        if not self.is_piped:
            refuse_all([], *(partial(self._look_at, source) for source in find_files("input", given)))
            refuse_other_types(*zip(*self._files, strict=True))
        elif keep:
            raise ConfigError([f"keep={list(keep)} is for Parquet files: leave it out"])
        mixed = {spec.label is not None for _, spec in self._files}
        if len(mixed) > 1:
            raise ConfigError(["some of the files have a label column and others have not: score them apart"])
        self.has_labels = mixed == {True} or (
            self.is_piped and labels is not False and self._spec.label is not None
        )
        self.identity = {
            "files": [[source.path, source.bytes, source.modified_ns] for source, _ in self._files],
            "columns": manifest.fingerprint(),
            "labels": self.has_labels,
            "unit_bytes": unit_bytes,
            "keep": list(keep),
        }
        self.origin_names = ("file", "line")
        self._first_line = 2 if self._spec.header else 1

    def _look_at(self, source: Source) -> None:
        if source.format == "parquet":
            spec = parquet_spec(source, self._spec, self._labels, _UNLABELLED)
            names = names_in(source)
            refuse_if(
                [
                    f"keep={name}: {source.path} has no such column, it has {listed(names, 12)}"
                    for name in self._keep.values()
                    if name not in names
                ]
            )
        else:
            spec = source_spec(source, self._spec, self._labels, _UNLABELLED)
            if self._keep:
                raise ConfigError(
                    [f"keep={[*self._keep.values()]} is for Parquet, {source.path} is text: leave it out"]
                )
        self._files.append((source, spec))

    def parts(self, is_wanted: Callable[[str, int], bool]) -> Iterator[Part]:
        """Gives the parts for which ``is_wanted(name, number)``; of standard input all."""
        if self.is_piped:
            yield from self._piped()
            return
        number = 0
        for source, spec in self._files:
            if source.format == "parquet":
                rows = self._rows_of(source, spec)
                wanted = [unit for unit in range(len(rows)) if is_wanted(_name(source, unit), number + unit)]
                for unit, read in self._parquet_units(source, spec, wanted):
                    yield Part(_name(source, unit), source.path, read, 1)
                number += len(rows)
                continue
            for unit, read in self._units(source, spec):
                if is_wanted(_name(source, unit), number):
                    yield Part(_name(source, unit), source.path, read, self._first_line)
                number += 1

    def _piped(self) -> Iterator[Part]:
        for text in pipe_units(sys.stdin.buffer, self._unit_bytes):
            if text.unit == 0:
                spec = file_spec("standard input", text.load(), self._spec, self._labels, _UNLABELLED)
                self.has_labels = spec.label is not None
            read = partial(self._encode, iter([text]), spec)
            yield Part(f"00000-{text.unit:07d}", "standard input", read, self._first_line)

    def _units(self, source: Source, spec: Spec) -> Iterator[tuple[int, ReadPart]]:
        feed = TextFeed(source, self._unit_bytes)
        if source.is_compressed:
            for text in feed.items():
                yield text.unit, partial(self._encode, iter([text]), spec)
            return
        for unit in range(max(1, -(-source.bytes // self._unit_bytes))):
            texts = replace(feed, first=unit, last=unit + 1).items()
            yield unit, partial(self._encode, texts, spec)

    def _rows_of(self, source: Source, spec: Spec) -> list[UnitRows]:
        return units_of(source, len(names_of(source, spec)) + len(self._keep), self._unit_bytes)

    def _parquet_units(
        self, source: Source, spec: Spec, wanted: Sequence[int]
    ) -> Iterator[tuple[int, ReadPart]]:
        rows, columns = self._rows_of(source, spec), {**names_of(source, spec), **self._keep}
        for _, numbers in groupby(wanted, lambda number: rows[number].groups):
            for unit in ParquetFeed(source, columns, self._unit_bytes, tuple(numbers)).items():
                yield unit.unit, partial(self._encode, iter([unit]), spec)

    def _encode(self, units: Iterator[UnitText | ParquetUnit], spec: Spec, part: Part) -> Iterator[Chunk]:
        """The rows of the first of ``units``, which keeps its file open."""
        unit = next(units)
        cursor, before = open_cursor(unit, spec), 0
        encoder = Encoder(spec, self._manifest.dense, self._manifest.sparse, self._manifest.folder)
        for raw in cursor.rows(_CHUNK_ROWS, None):
            rejects = cursor.take_rejects()
            lines = without(before, cursor.line, [reject.line for reject in rejects])
            part.rejects += [(reject.line, reject.reason) for reject in rejects]
            before = cursor.line
            kept = None
            if self._keep and isinstance(unit, ParquetUnit):
                kept = (
                    unit.table.select([*self._keep])
                    .rename_columns([*self._keep.values()])
                    .take(array_of(lines))
                )
            yield encoder.encode(raw).table, lines, kept
        part.rejects += [(reject.line, reject.reason) for reject in cursor.take_rejects()]
        part.num_lines = cursor.line


def _name(source: Source, unit: int) -> str:
    return f"{source.index:05d}-{unit:07d}"
