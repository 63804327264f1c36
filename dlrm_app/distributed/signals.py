"""SIGTERM, SIGUSR1 (Slurm's warning) and Ctrl-C: finish the step, save and stop. A second signal stops at once."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist

from dlrm_app.distributed.collectives import new_group
from dlrm_app.distributed.launcher import RESUMABLE
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import SharedError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
GRACE_SECONDS = 2.0
"""A launcher passes a terminal's Ctrl-C on as another signal. A signal within this time counts as the same request."""


class Stopped(SharedError):  # noqa: N818 - a requested stop is not an error
    """Raised by every rank that stops after a signal, with a checkpoint to resume from."""

    def __init__(self, message: str) -> None:
        super().__init__(message, RESUMABLE)


@dataclass(frozen=True)
class Agreement:
    """Actions that all ranks take because one of them asks for them."""

    stop: bool = False
    save: bool = False
    fail: bool = False


class StopRequest:
    """Lets all ranks agree to stop or save when any rank must. The answer comes one step late, so that no step waits for it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._asked_at: float | None = None
        self.signal_name = "a signal to another rank"
        self._group = new_group()
        self._flags = torch.zeros(3, dtype=torch.int32)
        self._work: dist.Work | None = None
        self._saved_since = False

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal."""
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self.signal_name = signal.Signals(number).name
            if self._runtime.is_first:
                print(
                    f"\n{self.signal_name}: stopping after this step; once more to stop at once",
                    file=sys.stderr,
                )
        elif now - self._asked_at > GRACE_SECONDS:
            os._exit(128 + number)

    def agreed(self, has_failed: bool = False, is_overdue: bool = False) -> Agreement:
        """The agreed actions: stop after a signal to any rank, save if one ``is_overdue`` on any, fail if any ``has_failed``.

        Every rank must call it once a step; all get the same answer.
        """
        must_stop = self._asked_at is not None
        if self._group is None:
            return Agreement(must_stop, is_overdue, has_failed)
        answer = Agreement()
        if self._work is not None:
            self._work.wait()
            stop, save, fail = map(bool, self._flags.tolist())
            answer = Agreement(stop, save and not self._saved_since, fail)
        self._saved_since = False
        # a save that is agreed on now is not requested again
        requests = [must_stop, is_overdue and not answer.save, has_failed]
        self._flags = torch.tensor(requests, dtype=torch.int32)
        self._work = dist.all_reduce(self._flags, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return answer

    def has_saved(self) -> None:
        """Marks earlier requests to save as done. Every rank must call it after a save."""
        self._saved_since = True

    def must_stop_now(self) -> bool:
        """True if all ranks must stop. Waits for the answer; for use between epochs, where waiting costs nothing."""
        self.agreed()
        self.settle()
        return bool(self._flags[0]) if self._group else self._asked_at is not None

    def settle(self) -> None:
        """Waits for the last request, so that no message is pending when the ranks end."""
        if self._work is not None:
            self._work.wait()
            self._work = None


@contextmanager
def stop_on_signals(runtime: Runtime) -> Iterator[StopRequest]:
    """Replaces the handlers of SIGNALS while the block runs."""
    request = StopRequest(runtime)
    before = {number: signal.signal(number, request.receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
