"""A wish to stop is heard by all ranks, and is not lost where an epoch ends."""

import signal

import pytest

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.distributed.signals import StopRequest
from tests.ranks import on_ranks


def ask_after_last_step(runtime: Runtime) -> list[bool]:
    """Epochs of two steps; the last rank gets a signal after the last step of the second one."""
    request = StopRequest(runtime)
    answers = []
    for epoch in range(2):
        for step in range(2):
            if (epoch, step, runtime.rank) == (1, 1, runtime.world_size - 1):
                request.receive(signal.SIGTERM, None)
            request.agreed()
        answers.append(request.agreed_now())
    return answers


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_signal_at_the_last_step_of_an_epoch_is_agreed_on_before_the_next(
    num_ranks: int,
) -> None:
    assert on_ranks(ask_after_last_step, num_ranks) == [[False, True]] * num_ranks
