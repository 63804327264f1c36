"""Checks which problem an error reports: by its key and rule, not by the words of the whole message."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dlrm_app.errors import DlrmError, Problem

ANY = "..."
"""Stands for any text, also within a text."""


@contextmanager
def refused(
    kind: type[DlrmError], key: str, rule: str, cure: str = ANY
) -> Iterator[pytest.ExceptionInfo[DlrmError]]:
    """The block must raise an error of this ``kind`` with a problem of this ``key`` and ``rule``.

    A cure is compared only if the test is about it.
    """
    with pytest.raises(kind) as caught:
        yield caught
    find_problem(caught.value, key, rule, cure)


def find_problem(error: DlrmError, key: str, rule: str, cure: str = ANY) -> Problem:
    """The problem of ``error`` with this ``key``, ``rule`` and ``cure``. Fails if there is none."""
    found = [problem for problem in error.problems if is_like(problem, key, rule, cure)]
    assert found, f"no problem is {key!r}, {rule!r}, {cure!r}:\n" + "\n".join(map(repr, error.problems))
    return found[0]


def is_like(problem: Problem, key: str, rule: str, cure: str = ANY) -> bool:
    """True if ``problem`` has this ``key``, ``rule`` and ``cure``."""
    pairs = ((key, problem.key), (rule, problem.rule), (cure, problem.cure))
    return all(re.fullmatch(_pattern(wanted), given, re.DOTALL) for wanted, given in pairs)


def _pattern(wanted: str) -> str:
    return ".*".join(map(re.escape, wanted.split(ANY)))
