"""The limit of malformed lines."""

from collections.abc import Iterable
from itertools import islice

from dlrm_app.errors import DataError, Problem

Place = tuple[str | None, int, str]
"""The file, the line and the reason of a malformed line."""
MAX_SHOWN = 5
"""The number of malformed lines that an error shows."""


def refuse_rejects(
    num_rejects: int, num_lines: int, max_fraction: float, rejects: Iterable[Place], cure: str
) -> None:
    """Raises DataError, with the first ``rejects``, if their share of all lines is above ``max_fraction``."""
    if num_rejects <= max_fraction * num_lines:
        return
    rule = f"allows fewer malformed lines than {num_rejects:,} of {num_lines:,}"
    shown = [
        Problem(f"{file}:{line}", f"is malformed: {reason}")
        for file, line, reason in islice(rejects, MAX_SHOWN)
    ]
    raise DataError(Problem(f"rejects.max_fraction={max_fraction:g}", rule, cure), *shown)
