"""The vocabularies that a day's are grown from: read from the parent's dataset, and written for the next day."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.encoding_files import BEFORE_ALL_DAYS, read_rows, read_vocabulary, read_waiting
from dlrm_app.dataset.lineage import Growth, Lineage
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.files import written_whole
from dlrm_app.preprocess.encode.sparse import FIRST_ID, keys_of
from dlrm_app.preprocess.passes.counting import in_buckets
from dlrm_app.preprocess.passes.growth import Grown, Values, Waiting
from dlrm_app.text import day_after, day_number

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parent:
    """The dataset whose vocabularies are to grow; ``folder`` has its files, ``columns`` and ``growth`` are by feature.

    day: its number.
    """

    folder: Path
    columns: Mapping[str, SparseColumn]
    growth: Mapping[str, Growth]
    day: int

    def read(self, name: str) -> tuple[Values, pa.Array]:
        """(the values of feature ``name``, the raw ones of those that live)."""
        column = self.columns[name]
        rows, vocabulary = read_rows(self.folder, column), read_vocabulary(self.folder, column)
        raw = vocabulary.column("value").combine_chunks()
        places = numbers_of(vocabulary.column("id")) - FIRST_ID
        keys = np.zeros(column.num_embeddings - FIRST_ID, np.uint64)
        is_living = np.zeros(len(keys), np.bool_)
        keys[places], is_living[places] = keys_of(raw), True
        days = (
            np.where(each == BEFORE_ALL_DAYS, np.int32(self.day), each)[FIRST_ID:]
            for each in (rows.given_day, rows.last_seen)
        )
        return Values(keys, is_living, rows.count[FIRST_ID:], rows.generation[FIRST_ID:], *days), raw

    def waiting(self, name: str) -> Waiting:
        """The values of feature ``name`` that wait for an id, as ``write_waiting`` orders them."""
        growth = self.growth.get(name)
        if growth is not None and growth.waiting_file:
            keys, counts, last_seen = read_waiting(self.folder, growth)
            return Waiting(keys, np.zeros(len(keys), np.int64), counts, last_seen)
        return Waiting.none()


def parent_of(known: Manifest, folder: Path, day: str) -> Parent:
    """The vocabularies of the dataset ``known``, whose files are in ``folder``, to grow on ``day``."""
    lineage = known.lineage or Lineage(day_after(day, -1))
    if not lineage.growth:
        logger.info(
            f"{known.path} keeps no values that wait for an id: those that it saw too seldom are counted from today on"
        )
    columns = {column.name: column for column in known.sparse}
    growth = {growth.features[0]: growth for growth in lineage.growth}
    return Parent(folder, columns, growth, day_number(lineage.day))


def write_vocabulary(
    path: Path, grown: Grown, raw: pa.Array, places: NDArray[np.int64], *, days: bool
) -> None:
    """Writes the vocabulary, a line for each id: its value is ``raw[place]``, null for a place of -1.

    ``days``: also what growing on takes.
    """
    values = grown.values
    lines = pa.Array.from_buffers(
        pa.int64(),
        len(places),
        [pa.py_buffer(np.packbits(places >= 0, bitorder="little")), pa.py_buffer(places)],
    )
    columns = {
        "value": raw.take(lines if (places < 0).any() else array_of(places)),
        "id": array_of(np.arange(FIRST_ID, FIRST_ID + len(values), dtype=np.int32)),
        "count": array_of(values.count),
    }
    if days:
        for name in ("generation", "given_day", "last_seen"):
            columns[name] = array_of(getattr(values, name))
    path.parent.mkdir(exist_ok=True)
    # values occur once and ids follow each other: less than half the bytes, and pages that stay as they were as it grows
    layout = {"use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED"}}
    with written_whole(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd", **layout)


def write_waiting(path: Path, waiting: Waiting) -> None:
    """Writes the values that wait, in the order of ``counting.in_buckets``."""
    order, _ = in_buckets(waiting.keys)
    arrays: dict[str, NDArray[Any]] = {
        "key": waiting.keys,
        "count": waiting.count,
        "last_seen": waiting.last_seen,
    }
    path.parent.mkdir(exist_ok=True)
    with written_whole(path) as temporary:
        table = pa.table({name: array_of(values[order]) for name, values in arrays.items()})
        pq.write_table(table, temporary, compression="zstd")
