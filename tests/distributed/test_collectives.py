"""A failure is raised where it happened; tests/runs/checkpoint/test_save.py has ranks that are slow or lost."""

from datetime import timedelta

from dlrm_app.distributed.collectives import new_group, while_others_wait
from dlrm_app.distributed.runtime import Runtime
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
