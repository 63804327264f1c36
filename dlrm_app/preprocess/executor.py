"""Who does the units: threads of this process.

An executor takes ``work``, a picklable function of one item (a unit's text, mostly), and the feeds that give the
items. It gives back the results as they come, in any order; what ``work`` must leave behind is on disk by then.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

Result = dict[str, Any]
Work = Callable[[Any], Result]


class Feed(Protocol):
    """Gives items one after the other, wherever it is sent; ``dlrm_app.preprocess.units.TextFeed`` is one."""

    def items(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Single:
    """A feed of one item that is at hand."""

    item: Any

    def items(self) -> Iterator[Any]:
        yield self.item


class Executor(Protocol):
    def run(self, work: Work, feeds: Sequence[Feed]) -> Generator[Result, None, None]:
        """Does ``work`` on every item of ``feeds``; raises the first error met.

        No work goes on once the generator is closed.
        """


class _Stream:
    """A feed that threads read in turn: one decompresses while the others work."""

    def __init__(self, feed: Feed) -> None:
        self.lock = threading.Lock()
        self._items = feed.items()

    def next(self) -> Any:
        return next(self._items, None)

    def close(self) -> None:
        self._items.close()  # type: ignore[attr-defined]  # a generator


class LocalExecutor:
    """``num_threads`` threads; each holds one item at a time."""

    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or num_cores()

    def run(self, work: Work, feeds: Sequence[Feed]) -> Generator[Result, None, None]:
        streams = [_Stream(feed) for feed in feeds]
        guard, stop = threading.Lock(), threading.Event()
        results: SimpleQueue[Result | BaseException | None] = SimpleQueue()

        def work_on() -> None:
            try:
                while not stop.is_set() and (item := _next_item(streams, guard)) is not None:
                    results.put(work(item))
                results.put(None)
            except BaseException as error:  # handed to the caller's thread, which raises it
                stop.set()
                results.put(error)

        threads = [threading.Thread(target=work_on, daemon=True) for _ in range(self.num_threads)]
        for thread in threads:
            thread.start()
        try:
            yield from _collect(results, len(threads))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for stream in streams:
                stream.close()


def _collect(results: "SimpleQueue[Result | BaseException | None]", running: int) -> Iterator[Result]:
    while running:
        result = results.get()
        if result is None:
            running -= 1
        elif isinstance(result, BaseException):
            raise result
        else:
            yield result


def _next_item(streams: list[_Stream], guard: threading.Lock) -> Any:
    """The next item of the first stream that nobody is reading, or of the first one once it is free."""
    while True:
        with guard:
            stream = next((stream for stream in streams if stream.lock.acquire(blocking=False)), None)
            first = streams[0] if streams else None
        if first is None:
            return None
        if stream is None:
            stream = first
            stream.lock.acquire()
        try:
            item = stream.next()
        finally:
            stream.lock.release()
        if item is not None:
            return item
        with guard:
            if stream in streams:
                streams.remove(stream)


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
