"""Raw rows in memory → columns as a dataset has them, by the parser and the encodings that made the dataset.

Whatever the rows come in becomes text first, with separators that no value has, so that there is one parser and one rule.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.config.preprocess import DatasetConfig
from dlrm_app.data.manifest import Manifest
from dlrm_app.errors import DataError
from dlrm_app.preprocess.encode.encoder import Encoder
from dlrm_app.preprocess.read.lines import PADDING
from dlrm_app.preprocess.read.parser import Parser
from dlrm_app.preprocess.read.rejects import RejectedLine, describe
from dlrm_app.preprocess.read.spec import Column, Spec, read_spec

FIELD, ITEM = "\x1f", "\x1e"
"""What stands between the fields of a row, and between the items of a list."""
BREAKING = frozenset("\x1e\x1f\n\r")
"""Characters that a value cannot hold, in text as here."""


def raw_spec(manifest: Manifest) -> Spec:
    """The format of the files that the dataset of ``manifest`` was made of. Raises DataError where it does not say."""
    if "dataset" not in manifest.config:
        raise DataError(
            f"{manifest.path} was not made of raw logs, so their format is not known: give data.path=, an encoded dataset"
        )
    return read_spec(DatasetConfig(**manifest.config["dataset"]))


def text_spec(spec: Spec) -> Spec:
    """``spec`` as the lines of RawText have it: the columns that are read, between separators of their own."""
    columns = tuple(_in_text(column) for column in spec.columns if column.role != "ignore")
    return replace(spec, delimiter=FIELD, quote=None, header=False, columns=columns)


def _in_text(column: Column) -> Column:
    return column if column.separator is None else replace(column, separator=ITEM)


class RawText:
    """Encodes lines of ``spec``, which is one of ``text_spec``, as ``manifest`` says; up to ``capacity`` at a time."""

    def __init__(self, spec: Spec, manifest: Manifest, capacity: int) -> None:
        self._spec = spec
        self._parser = Parser(spec, capacity)
        self._encoder = Encoder(spec, manifest.dense, manifest.sparse, manifest.folder)
        self._capacity = capacity

    def encode(self, lines: Sequence[str]) -> tuple[pa.Table, NDArray[np.int64], list[RejectedLine]]:
        """(the rows of the well-formed ``lines``, the number of each from 0 on, the lines left out and why)."""
        text = np.frombuffer("\n".join([*lines, ""]).encode("utf-8") + bytes(PADDING), np.uint8)
        stop, at, count = len(text) - PADDING, 0, 0
        rejects: list[RejectedLine] = []
        while at < stop:
            at, num_lines, its_rejects = self._parser.parse(text, at, stop, self._capacity)
            rejects += [describe(reject, count, self._spec, text) for reject in its_rejects]
            count += num_lines
        numbers = without(0, count, [reject.line for reject in rejects])
        return self._encoder.encode(self._parser.take()).table, numbers, rejects


def without(start: int, stop: int, left_out: Sequence[int]) -> NDArray[np.int64]:
    """range(start, stop) without the numbers ``left_out``."""
    keep = np.ones(stop - start, bool)
    keep[np.array(left_out, np.int64) - start] = False
    return np.arange(start, stop)[keep]
