"""Interrupting dlrm-preprocess at its commits."""

from collections.abc import Callable
from typing import Any

import pytest

from dlrm_app.journal import Journal


def run_in_pieces(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch, commits: int, *, loses_work: bool = True
) -> int:
    """Repeats ``make`` until it ends, interrupting each attempt at its commits; the number of interruptions.

    An attempt makes ``commits`` commits. It is interrupted before the next one, whose work is lost, or, without
    ``loses_work``, right after the last.
    """
    commit = Journal.commit
    left = interruptions = 0

    def commit_or_stop(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        commit(*arguments)
        if left == 0 and not loses_work:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "commit", commit_or_stop)
    while True:
        left = commits
        try:
            make()
            return interruptions
        except KeyboardInterrupt:
            interruptions += 1
