"""A wish to stop is heard by all ranks, and is not lost where an epoch ends."""

import signal
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dlrm_app.distributed import signals
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.distributed.signals import Agreement, StopRequest, steps_between
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
        answers.append(request.must_stop_now())
    return answers


def be_overdue_on_the_last_rank(runtime: Runtime) -> list[Agreement]:
    """From the second step on, until all have agreed to save."""
    request = StopRequest(runtime)
    answers: list[Agreement] = []
    for step in range(5):
        is_overdue = (
            step >= 1 and runtime.rank == runtime.world_size - 1 and Agreement(save=True) not in answers
        )
        answers.append(request.agreed(is_overdue=is_overdue))
    request.settle()
    return answers


def save_for_another_reason(runtime: Runtime) -> list[Agreement]:
    """In the step in which the first rank finds a checkpoint overdue."""
    request = StopRequest(runtime)
    answers = [request.agreed(is_overdue=runtime.is_first)]
    request.has_saved()
    answers += [request.agreed(), request.agreed()]
    request.settle()
    return answers


def all_wishes(runtime: Runtime) -> list[Any]:
    return [
        work(runtime) for work in (ask_after_last_step, be_overdue_on_the_last_rank, save_for_another_reason)
    ]


@pytest.mark.parametrize(("num_ranks", "step"), [(1, 1), (2, 2)])
def test_wishes_of_one_rank_are_agreed_on_by_all(num_ranks: int, step: int) -> None:
    """A signal at an epoch's last step; an overdue checkpoint, saved once, with several ranks one step later, so
    that no step waits for the answer; and what was saved meanwhile is not saved again."""
    for stops, saves, others in on_ranks(all_wishes, num_ranks):
        assert stops == [False, True]
        assert saves == [Agreement(save=number == step) for number in range(5)]
        assert others == [Agreement(save=num_ranks == 1), *[Agreement()] * 2]


def test_a_step_does_not_wait_for_its_own_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a step is waited for in the next one, while which another step has run."""
    events: list[str] = []

    class Question:
        def __init__(self, step: int) -> None:
            self.step = step

        def wait(self) -> None:
            events.append(f"wait for {self.step}")

    def ask(_flags: torch.Tensor, *_options: object, **_more: object) -> Question:
        step = sum(event.startswith("ask") for event in events)
        events.append(f"ask {step}")
        return Question(step)

    monkeypatch.setattr(signals, "new_group", object)
    monkeypatch.setattr(dist, "all_reduce", ask)
    request = StopRequest(Runtime(0, 0, 2, 2, "cpu", 1))
    for step in range(3):
        events.append(f"step {step}")
        request.agreed()
    assert events == [
        *("step 0", "ask 0"),
        *("step 1", "wait for 0", "ask 1"),
        *("step 2", "wait for 1", "ask 2"),
    ]


def answers_of_many_ranks(monkeypatch: pytest.MonkeyPatch, step_seconds: float) -> tuple[list[int], int]:
    """(Steps that sent a message, step that was told to stop) of 100 steps of one of 128 ranks; a signal in step 50."""
    sent: list[int] = []

    class Answer:
        def wait(self) -> None: ...

    def all_reduce(*_arguments: object, **_more: object) -> Answer:
        sent.append(step)
        return Answer()

    monkeypatch.setattr(signals, "new_group", object)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    now = -step_seconds
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    request, told = StopRequest(Runtime(0, 0, 128, 8, "cpu", 1)), -1
    for step in range(100):
        now += step_seconds
        if step == 50:
            request.receive(signal.SIGTERM, None)
        if request.agreed().stop:
            told = step
            break
    return sent, told


@pytest.mark.parametrize(("step_seconds", "every"), [(0.005, 40), (0.05, 4), (1.0, 1)])
def test_many_ranks_send_a_message_every_fifth_of_a_second(
    step_seconds: float, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, told = answers_of_many_ranks(monkeypatch, step_seconds)
    assert 50 < told <= 50 + every + 1
    later = sent[2:]
    assert {after - before for before, after in pairwise(later)} <= {every, every + 1}  # the clock is rounded
    assert len(sent) <= 3 + 50 / every + 1


def test_few_ranks_send_a_message_in_each_step() -> None:
    assert [steps_between(num_ranks, 0.001) for num_ranks in (2, 15, 16, 128)] == [1, 1, 100, 100]
