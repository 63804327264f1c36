"""A sample of a run's input: a few blocks of text spread over its files, and what each step makes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from dlrm_app.data.manifest import DenseColumn, SparseColumn
from dlrm_app.preprocess.encode.encoder import Encoder, list_slots
from dlrm_app.preprocess.hashing import MISSING_KEY
from dlrm_app.preprocess.job.executor import Finish
from dlrm_app.preprocess.job.passes import Cursor
from dlrm_app.preprocess.job.work_plan import Plan
from dlrm_app.preprocess.read import lines
from dlrm_app.preprocess.read.parser import Parser, RawColumns
from dlrm_app.preprocess.read.source import Source
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.read.units import TextFeed, UnitText
from dlrm_app.preprocess.statistics.counting import Counts
from dlrm_app.preprocess.statistics.study import moments_of
from dlrm_app.preprocess.write.shards import HashedFile, ShardWriter

BLOCK_BYTES = 4 << 20
_GZIP_HEAD = 1 << 20
_GZIP_BLOCKS = 2
"""Blocks read of a gzip file, from its start: there is no other way in."""


def text_bytes(source: Source) -> int:
    """The size of a source's text; of a gzip file guessed from how far its first MiB is compressed."""
    if not source.is_gzip:
        return source.bytes
    with Path(source.path).open("rb") as file:
        head = file.read(_GZIP_HEAD)
    if not head:
        return 0
    return round(source.bytes * len(isal_zlib.decompressobj(wbits=31).decompress(head)) / len(head))


def choose_blocks(sources: Sequence[Source], num_blocks: int) -> list[TextFeed]:
    """About ``num_blocks`` blocks, at even distances in the text of plain files and at the start of gzip files."""
    plain = [source for source in sources if not source.is_gzip]
    places = [(source, block) for source in plain for block in range(max(-(-source.bytes // BLOCK_BYTES), 1))]
    chosen = {round(at) for at in np.linspace(0, len(places) - 1, num_blocks)} if places else set()
    feeds = [
        TextFeed(source, BLOCK_BYTES, block, block + 1)
        for source, block in (places[at] for at in sorted(chosen))
    ]
    zipped = [source for source in sources if source.is_gzip]
    picked = sorted({round(at) for at in np.linspace(0, len(zipped) - 1, num_blocks)}) if zipped else []
    return feeds + [TextFeed(zipped[at], BLOCK_BYTES, last=_GZIP_BLOCKS) for at in picked]


def count_lines(text: UnitText) -> Finish:
    """The first pass of a run that cuts splits."""
    result = {"lines": int(lines.count_lines(*text.whole()))}
    return lambda: result


@dataclass(frozen=True)
class Study:
    """The pass that counts values and measures dense columns: ``rows``, and ``keys``, each feature's distinct ones."""

    plan: Plan

    def __call__(self, text: UnitText) -> Finish:
        spec = self.plan.spec_of(self.plan.sources[text.source].split)
        counts = [Counts() for _ in spec.sparse]
        rows = 0
        for raw in _rows(text, spec, self.plan):
            rows += len(raw.labels)
            for count, keys in zip(counts, keys_of(raw, spec), strict=True):
                count.add(keys, np.empty((0, 2), np.int64))
            for values in raw.dense:
                moments_of(values)
        result = {"rows": rows, "keys": [count.sorted().keys for count in counts]}
        return lambda: result


@dataclass(frozen=True)
class Encode:
    """The pass that encodes, into memory: rows, rejects, and the bytes of text and of Parquet."""

    plan: Plan
    dense: tuple[DenseColumn, ...]
    sparse: tuple[SparseColumn, ...]
    vocabularies: Path

    def __call__(self, text: UnitText) -> Finish:
        split = self.plan.sources[text.source].split
        spec = self.plan.spec_of(split)
        encoder = Encoder(spec, self.dense, self.sparse, self.vocabularies)
        writer = ShardWriter(HashedFile(BytesIO()), self.plan.layout, encoder.schema)
        cursor = Cursor(text, spec)
        for raw in cursor.rows(Parser(spec, self.plan.layout.row_group_rows), None):
            writer.write(encoder.encode(raw))
        shard = writer.finish()
        result = {
            "split": split,
            "text": text.size,
            "rows": shard["rows"],
            "bytes": shard["bytes"],
            "rejects": len(cursor.take_rejects()),
        }
        return lambda: result


def _rows(text: UnitText, spec: Spec, plan: Plan) -> Iterator[RawColumns]:
    yield from Cursor(text, spec).rows(Parser(spec, plan.layout.row_group_rows), None)


def keys_of(raw: RawColumns, spec: Spec) -> Iterator[NDArray[np.uint64]]:
    """The keys of every sparse column, lists in a row; missing ones left out."""
    slots = list_slots(spec)
    for column in spec.sparse:
        is_list, slot = slots[column.name]
        keys = raw.list_keys[slot, : raw.list_ends[slot, -1]] if is_list else raw.keys[slot]
        yield keys[keys != MISSING_KEY]
