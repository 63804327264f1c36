"""An export with all that a raw row needs on its way to a probability."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dlrm_app.data.rows import Bags, Rows
from dlrm_app.files import checksum
from dlrm_app.inference.exported_model import ExportedModel, open_export
from dlrm_app.inference.predict.part import TableReader
from dlrm_app.inference.raw_text import RawText, raw_spec
from dlrm_app.inference.record import RECORD
from dlrm_app.inference.scoring_model import Inputs
from dlrm_app.inference.serve.json_rows import JsonRows, RequestError, RowProblem, bad_rows

Answer = list[float] | RequestError
"""A probability for every row of a request, or why it has none."""


class ServedExport:
    """Scores requests, many at once. ``identity``: of this export alone, the beginning of its record's checksum.

    ``capacity``: rows of all requests that are scored at once. Not for several threads at a time.
    """

    def __init__(self, export: ExportedModel, capacity: int) -> None:
        self.export = export
        self.spec = raw_spec(export.encoding)
        self.identity = checksum(export.folder / RECORD).removeprefix("sha256:")[:12]
        self.json_rows = JsonRows(self.spec)
        self._text = RawText(self.json_rows.line_spec, export.encoding, capacity)
        self._reader = TableReader(export.encoding, export.features)

    def score(self, requests: Sequence[list[dict[str, object]]]) -> list[Answer]:
        """An answer to each of ``requests``, in order; a bad row spoils its own request alone."""
        answers: list[Answer | None] = []
        lines: list[str] = []
        begins = []
        for rows in requests:
            begins.append(len(lines))
            try:
                lines += self.json_rows.lines(rows)
                answers.append(None)
            except RequestError as refused:
                answers.append(refused)
        begins.append(len(lines))
        scores, problems = self._score_lines(lines)
        return [
            answer if answer is not None else _answer(scores[begin:end], problems, begin, end)
            for answer, begin, end in zip(answers, begins, begins[1:], strict=False)
        ]

    def _score_lines(self, lines: list[str]) -> tuple[list[float], dict[int, RowProblem]]:
        """(the probability of every line, 0 for those left out; what is wrong with those, by number)."""
        scores = np.zeros(len(lines), np.float64)
        if not lines:
            return [], {}
        table, numbers, rejects = self._text.encode(lines)
        if len(numbers):
            rows, _ = self._reader.rows(table, "the request")
            scores[numbers] = self.export.run(to_inputs(rows))[0].numpy()
        return scores.tolist(), {r.line: RowProblem(r.line, r.column, r.reason) for r in rejects}


def _answer(scores: list[float], problems: dict[int, RowProblem], begin: int, end: int) -> Answer:
    if not problems:
        return scores
    wrong = [
        RowProblem(line - begin, problem.column, problem.reason)
        for line, problem in problems.items()
        if begin <= line < end
    ]
    return bad_rows(wrong) if wrong else scores


def to_inputs(rows: Rows) -> Inputs:
    """``rows`` as a scoring model takes them."""
    size = len(rows)
    values, lengths = [], np.ones((len(rows.features), size), np.int32)
    for feature, ids in enumerate(rows.features):
        if isinstance(ids, Bags):
            values.append(ids.values[: ids.offsets[-1]])
            lengths[feature] = np.diff(ids.offsets)
        else:
            values.append(ids)
    return torch.from_numpy(rows.dense), torch.from_numpy(np.concatenate(values)), torch.from_numpy(lengths)


def open_served(path: Path, capacity: int) -> ServedExport:
    """Verifies and loads the export at ``path``, and scores a row of nothing. Raises DlrmError."""
    served = ServedExport(open_export(path.resolve()), capacity)
    served.score([[{}]])  # what is compiled or read at the first use
    return served
