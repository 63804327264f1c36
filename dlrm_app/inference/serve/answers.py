"""What a request is answered with: a probability for every row, or what is wrong with it."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PROBLEMS = 8
"""Bad rows that an answer names."""


@dataclass(frozen=True)
class RowProblem:
    """What is wrong with row number ``row`` of a request, counted from 0; ``column`` where it is one column's value."""

    row: int
    column: str | None
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.reason}"


class RequestError(Exception):
    """A request that is answered with ``status`` and the reason; ``problems`` name the rows."""

    def __init__(self, status: int, reason: str, problems: list[RowProblem] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.problems = problems or []


Answer = list[float] | RequestError
"""A probability for every row of a request, or why it has none."""


@dataclass(frozen=True)
class Scored:
    """The probability of every line, 0 for those that are malformed, which ``problems`` name by number."""

    scores: list[float]
    problems: list[RowProblem]

    def answers(self, sizes: Sequence[int]) -> list[Answer]:
        """An answer to each of the requests whose lines these are, ``sizes`` of them each."""
        answers: list[Answer] = []
        begin = 0
        for size in sizes:
            answers.append(self._answer(begin, begin + size))
            begin += size
        return answers

    def _answer(self, begin: int, end: int) -> Answer:
        wrong = [RowProblem(p.row - begin, p.column, p.reason) for p in self.problems if begin <= p.row < end]
        return bad_rows(wrong) if wrong else self.scores[begin:end]


def bad_rows(problems: list[RowProblem]) -> RequestError:
    """The refusal of a request for its rows."""
    more = f" (and {len(problems) - 1:,} rows more)" if len(problems) > 1 else ""
    return RequestError(422, f"{problems[0]}{more}", problems[:MAX_PROBLEMS])
