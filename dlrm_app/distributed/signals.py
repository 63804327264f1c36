"""SIGTERM, SIGUSR1 (Slurm's warning) and Ctrl-C: finish the step, save and stop. A second signal stops at once."""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist

from dlrm_app.distributed.collectives import new_group
from dlrm_app.distributed.launcher import handles_signals
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ExitCode, SharedError

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
GRACE_SECONDS = 2.0
"""A launcher passes a terminal's Ctrl-C on as another signal. A signal within this time counts as the same request."""


class Stopped(SharedError):  # noqa: N818 - a requested stop is not an error
    """Raised by every rank that stops after a signal, with a checkpoint to resume from."""

    exit_code = ExitCode.RESUMABLE


@dataclass(frozen=True)
class Agreement:
    """Actions that all ranks take because one of them asks for them."""

    stop: bool = False
    save: bool = False
    fail: bool = False


FEW_RANKS = 16
SECONDS_BETWEEN = 0.2
MOST_STEPS = 100


def steps_between(num_ranks: int, step_seconds: float) -> int:
    """The number of steps from one message to the next: 1 for few ranks, else as many as take SECONDS_BETWEEN.

    gloo adds up in a ring: a message among 128 ranks takes 5 to 10 ms, as long as a step.
    """
    if num_ranks < FEW_RANKS:
        return 1
    return min(max(1, math.ceil(SECONDS_BETWEEN / max(step_seconds, 1e-6))), MOST_STEPS)


class StopRequest:
    """Makes all ranks agree to stop or save when any rank must.

    The answer comes one step late, so that no step waits for it.

    Many ranks send their message only every few steps (``steps_between``).
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._asked_at: float | None = None
        self.signal_name = "a signal to another rank"
        self._group = new_group()
        self._flags = torch.zeros(4, dtype=torch.int32)
        """Stop, save and fail, and the microseconds of a step on the slowest rank."""
        self._work: dist.Work | None = None
        self._saved_since = False
        self._steps_between = self._steps_left = 1
        self._sent_at = time.monotonic()

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal."""
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self.signal_name = signal.Signals(number).name
            if self._runtime.is_first:
                logger.warning("\n%s: stopping after this step; once more to stop at once", self.signal_name)
        elif now - self._asked_at > GRACE_SECONDS:
            os._exit(128 + number)

    def agreed(self, has_failed: bool = False, is_overdue: bool = False) -> Agreement:
        """The agreed actions: stop after a signal, save if one ``is_overdue``, fail if one ``has_failed``, on any rank.

        Every rank must call it once a step; all get the same answer.
        """
        must_stop = self._asked_at is not None
        if self._group is None:
            return Agreement(must_stop, is_overdue, has_failed)
        answer = Agreement()
        if self._work is not None:
            self.settle()
            stop, save, fail, microseconds = self._flags.tolist()
            answer = Agreement(bool(stop), bool(save) and not self._saved_since, bool(fail))
            self._steps_between = steps_between(self._runtime.world_size, microseconds / 1e6)
            self._steps_left = self._steps_between - 1
        else:
            self._steps_left -= 1
        if self._steps_left <= 0:
            # a save that is agreed on now is not requested again
            self._send(must_stop, is_overdue and not answer.save, has_failed)
        return answer

    def _send(self, *requests: bool) -> None:
        now = time.monotonic()
        microseconds = min(int(1e6 * (now - self._sent_at) / self._steps_between), 2**31 - 1)
        self._sent_at, self._saved_since = now, False
        self._flags = torch.tensor([*requests, microseconds], dtype=torch.int32)
        self._work = dist.all_reduce(self._flags, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def has_saved(self) -> None:
        """Marks earlier requests to save as done. Every rank must call it after a save."""
        self._saved_since = True

    def must_stop_now(self) -> bool:
        """True if all ranks must stop. Waits for the answer; for use between epochs, where waiting costs nothing."""
        if self._group is None:
            return self._asked_at is not None
        self.settle()
        self._send(self._asked_at is not None, False, False)
        self.settle()
        return bool(self._flags[0])

    def settle(self) -> None:
        """Waits for the last request, so that no message is pending when the ranks end."""
        if self._work is not None:
            self._work.wait()
            self._work = None


@contextmanager
def stop_on_signals(runtime: Runtime) -> Iterator[StopRequest]:
    """Replaces the handlers of SIGNALS while the block runs, in a process that has called ``handle_signals``."""
    request = StopRequest(runtime)
    if not handles_signals() or threading.current_thread() is not threading.main_thread():
        if runtime.is_first:
            logger.info(
                "signals are left to this process: if one ends it, the run resumes from its last checkpoint"
            )
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
