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
    kind: type[DlrmError], key: str, rule: str, cure: str = ANY, value: object = ANY
) -> Iterator[pytest.ExceptionInfo[DlrmError]]:
    """The block must raise an error of this ``kind`` with a problem of this ``key`` and ``rule``.

    A cure, and the value that was given, are compared only if the test is about them.
    """
    with pytest.raises(kind) as caught:
        yield caught
    find_problem(caught.value, key, rule, cure, value)


def find_problem(error: DlrmError, key: str, rule: str, cure: str = ANY, value: object = ANY) -> Problem:
    """The problem of ``error`` with this ``key``, ``rule``, ``cure`` and ``value``. Fails if there is none."""
    found = [problem for problem in error.problems if is_like(problem, key, rule, cure, value)]
    wanted = Problem(key, rule, cure, value)
    assert found, f"no problem is {wanted!r}:\n" + "\n".join(map(repr, error.problems))
    return found[0]


def is_like(problem: Problem, key: str, rule: str, cure: str = ANY, value: object = ANY) -> bool:
    """True if ``problem`` has this ``key``, ``rule``, ``cure`` and ``value``."""
    pairs = ((key, problem.key), (rule, problem.rule), (cure, problem.cure))
    is_same = (
        value == ANY or problem.value == value or (problem.value != problem.value and value != value)
    )  # NaN
    return is_same and all(re.fullmatch(_pattern(wanted), given, re.DOTALL) for wanted, given in pairs)


def _pattern(wanted: str) -> str:
    return ".*".join(map(re.escape, wanted.split(ANY)))
