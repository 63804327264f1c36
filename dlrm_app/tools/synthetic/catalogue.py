"""A catalogue of items with vectors: each row shows one of the newest items, so that later rows show new ones.

An item has a taste, numbers that decide the clicks together with those of the row's id in column ``READER``; its vector
is the taste turned into ``width`` numbers, with a little noise, as an encoder of texts would give it. Who knows an
item's vector can tell who clicks it before anybody has seen it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.files import written_whole
from dlrm_app.tools.synthetic.distribution import uniform_draws
from dlrm_app.tools.synthetic.lines import hash_ids

READER = 8  # a few ids, none missing
SHARE = 0.35
"""The share of the logit's variance that items and readers decide."""
_TASTES, _READERS = 4, 64
_NOISE = 0.05
_BLOCK = 1 << 16
_ITEMS, _VECTORS, _NOISES = 0, 1, 2
"""Random streams of a catalogue's key."""


class Catalogue(NamedTuple):
    """``num_items`` items at a time, of which a new one replaces the oldest every ``rows_an_item`` rows. Everything
    depends on the numbers of rows and items alone.

    readers [_READERS, _TASTES]: what each of the frequent ids of READER likes; turn [_TASTES, width]: from tastes to
    vectors.
    """

    num_items: int
    rows_an_item: int
    key: int
    item_key: int
    readers: NDArray[np.float64]
    turn: NDArray[np.float64]

    def items(self, first_row: int, num_rows: int) -> NDArray[np.int64]:
        """The item that each row shows [B]."""
        rows = np.arange(first_row, first_row + num_rows)
        random = uniform_draws(rows, self.key, _ITEMS)
        return rows // self.rows_an_item + (random * self.num_items).astype(np.int64)

    def num_known(self, stop_row: int) -> int:
        """The items that rows before ``stop_row`` may show: those with lower numbers."""
        return (stop_row - 1) // self.rows_an_item + self.num_items

    def part(self, items: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """The part of the logit [B, 1] of rows with these items and these ``ranks`` of ids [B, F], before weights."""
        likes = self.readers[np.minimum(ranks[:, READER], _READERS - 1)]
        return (_tastes(items, self.key) * likes).sum(1, keepdims=True)

    def ids(self, items: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The ids of items, as the log has them."""
        return hash_ids(items.reshape(-1, 1), np.array([self.item_key], np.uint32))[:, 0]

    def write(self, path: Path, num_items: int) -> None:
        """Writes the vectors of the items below ``num_items``: their ids and vectors of float16."""
        kind = pa.list_(pa.float16(), self.turn.shape[1])
        schema = pa.schema([("value", pa.string()), ("vector", kind)])
        with written_whole(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for part in self._parts(num_items, kind):
                writer.write_table(pa.Table.from_arrays(part, schema=schema))

    def _parts(self, num_items: int, kind: pa.DataType) -> Iterator[list[pa.Array]]:
        for first in range(0, num_items, _BLOCK):
            items = np.arange(first, min(first + _BLOCK, num_items))
            vectors = _tastes(items, self.key) @ self.turn
            places = items[:, None] * vectors.shape[1] + np.arange(vectors.shape[1])
            vectors += _NOISE * _normal(places, self.key, _NOISES)
            flat = pa.array(vectors.astype(np.float16).reshape(-1))
            texts = [f"{number:08x}" for number in self.ids(items).tolist()]
            yield [pa.array(texts), pa.FixedSizeListArray.from_arrays(flat, type=kind)]


def make_catalogue(key: list[int], width: int, num_items: int, rows_an_item: int) -> Catalogue:
    """The catalogue of ``key`` [2]."""
    random = np.random.Generator(np.random.Philox(key=key))
    own = random.normal(size=(_READERS, _TASTES))
    turn = random.normal(size=(_TASTES, width)) / np.sqrt(_TASTES)
    keys = random.integers(2**31, size=2)
    # readers agree in part, so that an item is popular or not
    return Catalogue(num_items, rows_an_item, int(keys[0]), int(keys[1]), 0.7 + own, turn)


def _tastes(items: NDArray[np.int64], key: int) -> NDArray[np.float64]:
    """[R, _TASTES]: normal numbers, the item's for ever."""
    return _normal(items[:, None] * _TASTES + np.arange(_TASTES), key, _VECTORS)


def _normal(numbers: NDArray[np.int64], key: int, stream: int) -> NDArray[np.float64]:
    """A normal draw for each of ``numbers`` (Box and Muller)."""
    first, second = (uniform_draws(2 * numbers + place, key, stream) for place in (0, 1))
    return np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
