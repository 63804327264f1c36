"""Raw rows, encoded as those of training were: pieces of text as preprocessing cuts them, row groups of Parquet, lines.

Whatever rows come in becomes lines, with separators that no value has, so that there is one parser and one rule.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.config.scoring import STANDARD_INPUT
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.parquet import MAGIC as PARQUET_MAGIC
from dlrm_app.errors import ConfigError, DataError, refuse_all
from dlrm_app.inference.predict.parts import Chunk, Part, ReadPart
from dlrm_app.preprocess.encode.encoder import Encoded, Encoder
from dlrm_app.preprocess.read.beginning import file_spec, source_spec
from dlrm_app.preprocess.read.parser import Cursor, Parser, RejectedLine
from dlrm_app.preprocess.read.spec import Column, Spec, read_spec
from dlrm_app.preprocess.units.source import Source, find_files
from dlrm_app.preprocess.units.unit_text import PADDING, TextFeed, UnitText, pipe_units

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
_BAD = "\0"
"""Stands for a value that a line of text could not hold: the parser rejects its row."""


@dataclass(frozen=True)
class _File:
    source: Source
    is_parquet: bool
    spec: Spec


class RawParts:
    """The files ``given`` (a path, a glob, a list, or - for standard input), encoded as ``manifest`` says.

    ``labels``: whether their label column is read; None: where it is there. Raises DlrmError.
    """

    def __init__(self, given: Any, labels: bool | None, manifest: Manifest, unit_bytes: int) -> None:
        self._spec = raw_spec(manifest)
        self._manifest = manifest
        self._unit_bytes = unit_bytes
        self._labels = labels
        self.is_piped = given == STANDARD_INPUT
        self._files: list[_File] = []
        if not self.is_piped:
            refuse_all([], *(partial(self._look_at, source) for source in find_files("input", given)))
        mixed = {file.spec.label is not None for file in self._files}
        if len(mixed) > 1:
            raise ConfigError(["some of the files have a label column and others have not: score them apart"])
        self.has_labels = mixed == {True} or (
            self.is_piped and labels is not False and self._spec.label is not None
        )
        self.identity = {
            "files": [[f.source.path, f.source.bytes, f.source.modified_ns] for f in self._files],
            "columns": manifest.fingerprint(),
            "labels": self.has_labels,
            "unit_bytes": unit_bytes,
        }
        self.origin_names = ("file", "line")
        self._first_line = 2 if self._spec.header else 1

    def _look_at(self, source: Source) -> None:
        with open(source.path, "rb") as file:  # noqa: PTH123
            is_parquet = file.read(4) == PARQUET_MAGIC
        if is_parquet:
            with _readable_parquet(source.path):
                names = pq.read_schema(source.path).names
            cure = "add them, of nulls where nothing is known"
            spec = self._spec.in_columns(names, self._labels, source.path, cure)
        else:
            spec = source_spec(source, self._spec, self._labels, _UNLABELLED)
        self._files.append(_File(source, is_parquet, spec))

    def parts(self, is_wanted: Callable[[str, int], bool]) -> Iterator[Part]:
        """Gives the parts for which ``is_wanted(name, number)``; of standard input all."""
        if self.is_piped:
            yield from self._piped()
            return
        number = 0
        for file in self._files:
            units = self._row_groups if file.is_parquet else self._units
            first = 1 if file.is_parquet else self._first_line
            for unit, read in units(file.source, file.spec):
                name = f"{file.source.index:05d}-{unit:07d}"
                if is_wanted(name, number):
                    yield Part(name, file.source.path, read, first)
                number += 1

    def _piped(self) -> Iterator[Part]:
        for text in pipe_units(sys.stdin.buffer, self._unit_bytes):
            if text.unit == 0:
                spec = file_spec("standard input", text.load(), self._spec, self._labels, _UNLABELLED)
                self.has_labels = spec.label is not None
            read = partial(self._encode_text, iter([text]), spec)
            yield Part(f"00000-{text.unit:07d}", "standard input", read, self._first_line)

    def _units(self, source: Source, spec: Spec) -> Iterator[tuple[int, ReadPart]]:
        feed = TextFeed(source, self._unit_bytes)
        if source.is_gzip:
            for text in feed.items():
                yield text.unit, partial(self._encode_text, iter([text]), spec)
            return
        for unit in range(max(1, -(-source.bytes // self._unit_bytes))):
            texts = replace(feed, first=unit, last=unit + 1).items()
            yield unit, partial(self._encode_text, texts, spec)

    def _encode_text(self, texts: Iterator[UnitText], spec: Spec, part: Part) -> Iterator[Chunk]:
        """The rows of the first of ``texts``, which keeps its file open."""
        cursor, before = Cursor(next(texts), spec), 0
        encoder = Encoder(spec, self._manifest.dense, self._manifest.sparse, self._manifest.folder)
        for raw in cursor.rows(Parser(spec, _CHUNK_ROWS), None):
            rejects = cursor.take_rejects()
            lines = without(before, cursor.line, [reject.line for reject in rejects])
            part.rejects += [(reject.line, reject.reason) for reject in rejects]
            before = cursor.line
            yield encoder.encode(raw).table, lines
        part.rejects += [(reject.line, reject.reason) for reject in cursor.take_rejects()]
        part.num_lines = cursor.line

    def _row_groups(self, source: Source, spec: Spec) -> Iterator[tuple[int, ReadPart]]:
        path = source.path
        with _readable_parquet(path), pq.ParquetFile(path) as parquet:
            count = parquet.metadata.num_row_groups
        for group in range(count):
            yield group, partial(self._encode_group, path, group, spec)

    def _encode_group(self, path: str, group: int, spec: Spec, part: Part) -> Iterator[Chunk]:
        rows = TextEncoder(text_spec(spec), self._manifest, _CHUNK_ROWS)
        names = [column.name for column in read_columns(spec)]
        with _readable_parquet(path), pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(_CHUNK_ROWS, row_groups=[group], columns=names):
                try:
                    lines = lines_of(pa.Table.from_batches([batch]), spec)
                except DataError as error:
                    raise DataError(f"{path}: {error}") from error
                encoded, numbers, rejects = rows.encode(lines)
                part.rejects += [(part.num_lines + reject.line, reject.reason) for reject in rejects]
                yield encoded.table, part.num_lines + numbers
                part.num_lines += len(lines)


@contextmanager
def _readable_parquet(path: str) -> Iterator[None]:
    """Raises DataError for what Arrow cannot read of the file at ``path`` in the block."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} cannot be read as Parquet: {reason}; copy it again, or write it anew"
        ) from error


def lines_of(table: pa.Table, spec: Spec) -> list[str]:
    """The rows of ``table`` as lines of ``text_spec(spec)``. Raises DataError."""
    columns = []
    for column in read_columns(spec):
        values = table.column(column.name).combine_chunks()
        try:
            columns.append(_texts(values, column))
        except pa.ArrowException as error:  # nested values, bytes that are no text
            raise DataError(
                f"column {column.name} is {values.type}, which is no text or number: cast it"
            ) from error
    lines: list[str] = pc.binary_join_element_wise(*columns, FIELD).to_pylist()
    return lines


def _texts(values: Any, column: Column) -> Any:
    """Every value as the text that the parser reads; nothing where it is missing."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if column.separator is not None:
        if not pa.types.is_list(values.type) and not pa.types.is_large_list(values.type):
            raise DataError(
                f"column {column.name} is {values.type}, the model reads lists of it: put each value in a list"
            )
        items = _scalars(values.flatten(), column)
        offsets = pc.subtract(values.offsets, values.offsets[0])
        texts = pc.binary_join(pa.ListArray.from_arrays(offsets.cast(pa.int32()), items), ITEM)
        is_one_missing = pc.and_(pc.equal(texts, ""), pc.not_equal(pc.list_value_length(values), 0))
        return pc.fill_null(pc.if_else(is_one_missing, _BAD, texts), "")
    return _scalars(values, column)


def _scalars(values: Any, column: Column) -> Any:
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif column.kind == "integer" and pa.types.is_floating(kind):
        fits = pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), 2.0**63))  # inf does not
        whole = pc.fill_null(fits, True)
        texts = pc.if_else(
            whole, pc.if_else(whole, values, None).cast(pa.int64(), safe=False).cast(pa.string()), _BAD
        )
        return pc.fill_null(pc.if_else(pc.is_null(values, nan_is_null=True), None, texts), "")
    elif column.kind == "hex" and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"column {column.name} is {kind}, the model reads texts of hex digits: cast it")
    elif pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), None, values)
    texts = values.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        breaking = f"[{''.join(map(re.escape, sorted(BREAKING)))}{re.escape(column.separator or '')}]"
        texts = pc.if_else(pc.match_substring_regex(texts, breaking), _BAD, texts)
    return pc.fill_null(texts, "")
