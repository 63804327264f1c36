"""An export with all that a raw row needs on its way to a probability."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dlrm_app.files import checksum
from dlrm_app.inference.exported_model import ExportedModel, open_export
from dlrm_app.inference.predict.text_encoder import TextEncoder
from dlrm_app.inference.raw_text import raw_spec
from dlrm_app.inference.record import RECORD
from dlrm_app.inference.reference import Inputs
from dlrm_app.inference.serve.answers import Answer, RequestError, RowProblem, Scored
from dlrm_app.inference.serve.json_rows import JsonRows
from dlrm_app.preprocess.encode.encoder import Encoded


class ServedExport:
    """Scores requests, many at once. ``identity``: of this export alone, the beginning of its record's checksum.

    ``capacity``: rows of all requests that are scored at once. Not for several threads at a time.
    """

    def __init__(self, export: ExportedModel, capacity: int) -> None:
        self.export = export
        self.spec = raw_spec(export.encoding)
        self.identity = checksum(export.folder / RECORD).removeprefix("sha256:")[:12]
        self._json_rows = JsonRows(self.spec)
        self._text = TextEncoder(self._json_rows.line_spec, export.encoding, capacity)
        position = self._text.schema.get_field_index
        self._dense = [position(name) for name in export.record.dense]
        self._features = [position(name) for name in export.features]

    def score(self, requests: Sequence[list[dict[str, object]]]) -> list[Answer]:
        """An answer to each of ``requests``, in order; a bad row spoils its own request alone."""
        lines = [self._lines(rows) for rows in requests]
        good = [its_lines for its_lines in lines if not isinstance(its_lines, RequestError)]
        scored = self.score_lines([line for its_lines in good for line in its_lines])
        answers = iter(scored.answers([len(its_lines) for its_lines in good]))
        return [its_lines if isinstance(its_lines, RequestError) else next(answers) for its_lines in lines]

    def _lines(self, rows: list[dict[str, object]]) -> list[str] | RequestError:
        try:
            return self._json_rows.lines(rows)
        except RequestError as refused:
            return refused

    def score_lines(self, lines: Sequence[str]) -> Scored:
        """The probability of each of ``lines``, which JsonRows made."""
        scores = np.zeros(len(lines), np.float64)
        if not lines:
            return Scored([], [])
        encoded, numbers, rejects = self._text.encode(lines)
        if len(numbers):
            scores[numbers] = self.export.score(self._inputs(encoded))[0].numpy()
        return Scored(scores.tolist(), [RowProblem(r.line, r.column, r.reason) for r in rejects])

    def _inputs(self, encoded: Encoded) -> Inputs:
        dense = np.empty((len(encoded), len(self._dense)), np.float32)
        for column, position in enumerate(self._dense):
            dense[:, column] = encoded.values(position)
        bags = [encoded.bags(position) for position in self._features]
        values, lengths = np.concatenate([ids for ids, _ in bags]), np.stack([counts for _, counts in bags])
        return torch.from_numpy(dense), torch.from_numpy(values), torch.from_numpy(lengths)


def open_served(path: Path, capacity: int) -> ServedExport:
    """Verifies and loads the export at ``path``, and scores a row of nothing. Raises DlrmError."""
    served = ServedExport(open_export(path.resolve()), capacity)
    served.score([[{}]])  # what is compiled or read at the first use
    return served
