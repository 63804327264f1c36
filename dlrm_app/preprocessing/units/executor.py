"""Runs units of work in threads.

An executor takes ``work``, which is called with each item (usually a unit's text), and the feeds that yield the items.
It yields records as they come, in any order; the files of a record are on disk by then.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple, Protocol

from dlrm_app.preprocessing.units.journal import Journal, R

Finish = Callable[[], R]
"""The end of an item's work: waits for the disk and returns the item's record."""


class Work(Protocol[R]):
    """A pass: the work on each item. Picklable."""

    title: ClassVar[str]
    """Its name in a progress bar."""

    @property
    def journal(self) -> Journal[R]:
        """The journal that the records are written to."""

    def __call__(self, item: Any, /) -> Finish[R]: ...


class Feed(Protocol):
    """Yields items one after another, in any process; ``dlrm_app.preprocessing.units.unit_text.TextFeed`` is one."""

    def items(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Single:
    """A feed of one existing item."""

    item: Any

    def items(self) -> Iterator[Any]:
        yield self.item


class Executor(Protocol):
    def run(self, work: Work[R], feeds: Sequence[Feed]) -> Generator[R, None, None]:
        """Runs ``work`` on every item of ``feeds``; raises the first error.

        All work has stopped once the generator is closed.
        """


class _Stream(NamedTuple):
    """A feed that threads read in turn; an item is read while it is worked on."""

    lock: threading.Lock
    items: Any
    fetch_ahead: Callable[[], object]


class LocalExecutor:
    """Runs work in ``num_threads`` threads; each holds one item at a time. The caller's thread finishes the items."""

    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or num_cores()

    def run(self, work: Work[R], feeds: Sequence[Feed]) -> Generator[R, None, None]:
        streams = [
            _Stream(threading.Lock(), feed.items(), getattr(feed, "fetch_ahead", int)) for feed in feeds
        ]
        guard, stop = threading.Lock(), threading.Event()
        done: SimpleQueue[Finish[R] | BaseException | None] = SimpleQueue()

        def work_on() -> None:
            try:
                while not stop.is_set() and (stream := _lock_stream(streams, guard)) is not None:
                    with ExitStack() as held:
                        held.callback(stream.lock.release)
                        item = next(stream.items, None)
                        if item is None:
                            with guard:
                                if stream in streams:
                                    streams.remove(stream)
                            continue
                        with guard:
                            for other in [it for it in streams if not it.lock.locked()][: self.num_threads]:
                                other.fetch_ahead()
                        if len(streams) < self.num_threads and getattr(item, "detach", bool)():
                            held.close()  # one thread decompresses the rest of a file while others work
                        done.put(work(item))
                        del item  # its memory is free for the next one
                done.put(None)
            except BaseException as error:  # raised again in the caller's thread
                stop.set()
                done.put(error)

        threads = [threading.Thread(target=work_on, daemon=True) for _ in range(self.num_threads)]
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            while running:
                finish = done.get()
                if isinstance(finish, BaseException):
                    raise finish
                if finish is None:
                    running -= 1
                else:
                    yield finish()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for stream in streams:
                stream.items.close()


def _lock_stream(streams: list[_Stream], guard: threading.Lock) -> _Stream | None:
    """Locks the first stream that no thread is reading, or the first one once it is free; None if no stream is left."""
    with guard:
        stream = next((stream for stream in streams if stream.lock.acquire(blocking=False)), None)
        first = streams[0] if streams else None
    if stream is None and first is not None:
        first.lock.acquire()
        return first
    return stream


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
