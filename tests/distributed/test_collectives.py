"""Ranks wait long for one that works, and not long for one that is lost."""

import time
from datetime import timedelta

from dlrm_app.distributed.collectives import new_group, while_others_wait
from dlrm_app.distributed.runtime import Runtime
from tests.ranks import on_ranks

PATIENCE = timedelta(seconds=3)


def slow_on_one(runtime: Runtime) -> tuple[int, float]:
    group, started = new_group(PATIENCE), time.monotonic()
    result = while_others_wait(lambda: time.sleep(5 * runtime.rank) or runtime.rank, group)  # type: ignore[func-returns-value]
    return result, time.monotonic() - started


def lost_on_one(runtime: Runtime) -> float:
    """Rank 1 says nothing for twice the time that rank 0 waits."""
    group, started = new_group(PATIENCE), time.monotonic()
    time.sleep(6 * runtime.rank)
    try:
        while_others_wait(lambda: None, group)
    except RuntimeError:
        return time.monotonic() - started
    return 0


def failing_on_one(runtime: Runtime) -> str:
    def work() -> None:
        if runtime.rank == 1:
            raise ValueError("no disk")

    try:
        while_others_wait(work, new_group(PATIENCE))
    except ValueError as error:
        return str(error)
    return "well"


def test_one_that_takes_longer_than_the_timeout_is_waited_for() -> None:
    results = on_ranks(slow_on_one, 2)
    assert [rank for rank, _ in results] == [0, 1]
    assert all(seconds >= 5 for _, seconds in results)


def test_one_that_says_nothing_is_given_up() -> None:
    waited, _ = on_ranks(lost_on_one, 2)
    assert 0 < waited < 6


def test_a_failure_is_raised_where_it_happened_and_nobody_waits_for_ever() -> None:
    assert on_ranks(failing_on_one, 2) == ["well", "no disk"]
