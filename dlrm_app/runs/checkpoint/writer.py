"""One save at a time: at once, or in a thread of its own while training goes on.

torch.distributed.checkpoint.async_save is not used: its thread ends where its index is written, and checksums, marker
and the deletion of older checkpoints come after that; its copies are of whole tensors, for CUDA with moved placements.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread

from dlrm_app.distributed.collectives import new_group


class Writer:
    """Does one piece of work after another; its ``group`` of all ranks is for messages that training never sends."""

    def __init__(self, in_background: bool) -> None:
        self.in_background = in_background
        self.group = new_group()
        self._pending: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Does ``work`` now, or begins it. The one before must have been waited for."""
        self._pending = Future()
        if self.in_background:
            # a daemon: a process that must end does not wait for its disk
            Thread(target=_fulfil, args=(self._pending, work), name="checkpoint", daemon=True).start()
        else:
            _fulfil(self._pending, work)
            self.finish()

    @property
    def has_failed(self) -> bool:
        """Whether ``finish`` would raise, as far as this rank knows by now."""
        done = self._pending
        return done is not None and done.done() and done.exception() is not None

    def finish(self) -> None:
        """Waits for the work under way and raises what it raised. Every rank must call it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def abandon(self, seconds: float) -> None:
        """Gives the work under way so many seconds to end; for a process that ends because of another error."""
        if self._pending is not None:
            wait([self._pending], seconds)


def _fulfil(future: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # finish() raises it where the run can see it
        future.set_exception(error)
    else:
        future.set_result(None)
