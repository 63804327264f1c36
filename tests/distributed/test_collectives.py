"""A failure is raised where it happened; tests/runs/checkpoint/test_save.py has ranks that are slow or lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from dlrm_app.distributed.collectives import new_group, while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError
from tests.ranks import on_ranks

PATIENCE = timedelta(seconds=3)


def failing_on_one(runtime: Runtime) -> str:
    def work() -> None:
        if runtime.rank == 1:
            raise ValueError("no disk")

    try:
        while_others_wait(work, new_group(PATIENCE))
    except ValueError as error:
        return str(error)
    return "well"


def test_a_failure_on_one_rank_leaves_no_rank_waiting() -> None:
    assert on_ranks(failing_on_one, 2) == ["well", "no disk"]


def shared_from_first(runtime: Runtime) -> list[object]:
    """What a step on the first rank gives to each rank, and how each leaves if the step fails."""

    def number(factor: int) -> int:
        if not runtime.is_first:
            raise AssertionError("only the first rank takes the step")
        return factor * 7

    @contextmanager
    def folder(has_failed: bool) -> Iterator[str]:
        if has_failed:
            raise DataError("it is held by another")
        left.append("entered")
        yield "folder"
        left.append("left")

    def refuse() -> None:
        raise DataError("no disk")

    left: list[str] = []
    with runtime.entered_on_first(folder(False)) as path:
        found: list[object] = [runtime.on_first(number, factor=6), path, list(left)]
    for step in (lambda: runtime.on_first(refuse), lambda: runtime.together(alone_on_last, runtime)):
        with pytest.raises(DataError) as error:
            step()
        found.append(str(error.value) * error.value.is_shared)
    with pytest.raises(DataError) as error, runtime.entered_on_first(folder(True)):
        pass
    return [*found, str(error.value), left]


def alone_on_last(runtime: Runtime) -> None:
    if runtime.rank == runtime.world_size - 1:
        raise DataError("a damaged file")


def test_all_ranks_share_a_step_of_the_first_and_its_failure() -> None:
    failures = ["no disk", "a damaged file", "it is held by another"]
    first, second = on_ranks(shared_from_first, 2)
    assert first == [42, "folder", ["entered"], *failures, ["entered", "left"]]
    assert second == [42, "folder", [], *failures, []]
