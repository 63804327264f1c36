"""Lines in memory → columns as a dataset has them, by the parser and the encodings that made the dataset."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.preprocess.encode.encoder import Encoded, Encoder
from dlrm_app.preprocess.read.lines import PADDING
from dlrm_app.preprocess.read.parser import Parser
from dlrm_app.preprocess.read.rejects import RejectedLine, describe
from dlrm_app.preprocess.read.spec import Spec


class TextEncoder:
    """Encodes lines of ``spec``, which is one of ``text_spec``, as ``manifest`` says; up to ``capacity`` at a time."""

    def __init__(self, spec: Spec, manifest: Manifest, capacity: int) -> None:
        self._spec = spec
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
            rejects += [describe(reject, count, self._spec, text) for reject in its_rejects]
            count += num_lines
        numbers = without(0, count, [reject.line for reject in rejects])
        return self._encoder.encode(self._parser.take()), numbers, rejects


def without(start: int, stop: int, left_out: Sequence[int]) -> NDArray[np.int64]:
    """range(start, stop) without the numbers ``left_out``."""
    keep = np.ones(stop - start, bool)
    keep[np.array(left_out, np.int64) - start] = False
    return np.arange(start, stop)[keep]
