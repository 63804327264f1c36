"""Interrupting dlrm-preprocess at its commits, or killing it anywhere."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.journal import Journal
from tests.preprocessing.running import content


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


def assert_kills_change_nothing(command: Sequence[str], output: Path, kills_wanted: int) -> None:
    """Kills ``command``, which writes to ``output``, at random moments and starts it again: it always ends in the bytes of
    a run that nobody killed.
    """
    shortest, draw = float("inf"), random.Random(0)
    expected, kills, finished, was_killed = None, 0, 0, False
    while expected is None or kills < kills_wanted or not finished:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begin = time.monotonic()
        try:
            is_killed = expected is not None and kills < kills_wanted
            code = process.wait(draw.uniform(0.3, 1.0) * shortest if is_killed else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills, was_killed = kills + 1, True
            continue
        assert code == 0
        if expected is None:
            expected = content(output)
        else:
            finished += 1
        if not was_killed:
            shortest = min(shortest, time.monotonic() - begin)
        was_killed = False
        assert content(output) == expected
        shutil.rmtree(output)
