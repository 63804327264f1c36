"""Runs a pass over its items in threads.

An executor takes a pass and the feeds that its items come from. It yields the record of each item as soon as it is
made, so in any order. The files of a record are on disk by then.
"""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from threading import Condition
from typing import ClassVar, Generic, Protocol, TypeVar

from dlrm_app.journal import Finish, Journal, R, numbered
from dlrm_app.machine import num_cores


class Item(Protocol):
    """Something to work on, such as the text of a unit. Its bytes may be read while it is worked on."""

    @property
    def name(self) -> str:
        """The name of the work in the journal of the pass."""

    def detach(self) -> bool:
        """Reads the bytes that its feed cannot skip. Returns True if the feed can continue without the item."""


T = TypeVar("T", bound=Item)
T_in = TypeVar("T_in", bound=Item, contravariant=True)
T_out = TypeVar("T_out", bound=Item, covariant=True)


class Pass(Protocol[T_in, R]):
    """The work on each item. Picklable, so that it can be sent to other processes."""

    title: ClassVar[str]
    """The name in a progress bar."""
    reads: ClassVar[tuple[str, ...]]
    """Patterns of the files in OUTPUT/.work that it reads, which earlier passes have made. Ranks that share a store and no
    disk fetch them first, beside the files of OUTPUT itself.
    """

    @property
    def journal(self) -> Journal[R]:
        """The journal that the records are written to."""

    def __call__(self, item: T_in, /) -> Finish[R]: ...


class Feed(Protocol[T_out]):
    """Items that are read one after another. Picklable until it is prefetched."""

    def prefetched(self) -> "Feed[T_out]":
        """The same feed, with its first bytes being fetched in the background; itself if that gains nothing."""

    def items(self) -> Generator[T_out, None, None]:
        """The items in order. Each must be worked on, or detached, before the next one is requested."""


@dataclass(frozen=True)
class NumberedItem:
    """An item that is known by its number, such as a shard to gather."""

    number: int

    @property
    def name(self) -> str:
        return numbered(self.number)

    def detach(self) -> bool:
        return True


@dataclass(frozen=True)
class SingleFeed(Generic[T]):
    """A feed of one existing item."""

    item: T

    def prefetched(self) -> "SingleFeed[T]":
        return self

    def items(self) -> Generator[T, None, None]:
        yield self.item


class Executor(Protocol):
    def run(self, work: Pass[T, R], feeds: Sequence[Feed[T]]) -> Generator[R, None, None]:
        """Runs ``work`` on every item of ``feeds``; raises the first error.

        All work has stopped once the generator is closed.
        """


class LocalExecutor:
    """Runs a pass in ``num_threads`` threads; the caller's thread finishes the items.

    A thread reads an item while it works on it, so at most ``num_threads`` items are in memory, and it keeps its feed
    to the end. Where feeds are fewer than threads, it detaches each item and another thread continues the feed: one
    thread decompresses the next part of a file while others parse earlier parts.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or num_cores()

    def run(self, work: Pass[T, R], feeds: Sequence[Feed[T]]) -> Generator[R, None, None]:
        """See ``Executor``."""
        done: SimpleQueue[Finish[R] | Future[None]] = SimpleQueue()
        with (
            closing(_Streams(feeds, self.num_threads)) as streams,
            ThreadPoolExecutor(self.num_threads) as pool,
        ):
            try:
                for _ in range(self.num_threads):
                    pool.submit(_work_on, work, streams, done).add_done_callback(done.put)
                num_running = self.num_threads
                while num_running:
                    finish = done.get()
                    if isinstance(finish, Future):
                        finish.result()  # raises the thread's error
                        num_running -= 1
                    else:
                        yield finish()
            finally:
                streams.stop()


def _work_on(work: Pass[T, R], streams: "_Streams[T]", done: "SimpleQueue[Finish[R] | Future[None]]") -> None:
    while (stream := streams.take()) is not None:
        item = stream.read()
        if item is None:
            streams.drop()
            continue
        streams.prefetch()
        is_free = streams.are_few and item.detach()
        if is_free:
            streams.give_back(stream)
        done.put(work(item))
        del item  # frees its memory before the next one is read
        if not is_free:
            streams.give_back(stream)


class _Stream(Generic[T]):
    """A feed that is being read, by one thread at a time."""

    def __init__(self, feed: Feed[T]) -> None:
        self._feed = feed
        self._items: Generator[T, None, None] | None = None

    def prefetch(self) -> None:
        if self._items is None:
            self._feed = self._feed.prefetched()

    def read(self) -> T | None:
        """The next item; None at the end."""
        if self._items is None:
            self._items = self._feed.items()
        return next(self._items, None)

    def close(self) -> None:
        if self._items is not None:
            self._items.close()


class _Streams(Generic[T]):
    """Gives streams to threads: those already begun first, then the others in order."""

    def __init__(self, feeds: Sequence[Feed[T]], num_threads: int) -> None:
        self._all = [_Stream(feed) for feed in feeds]
        self._waiting = deque(self._all)
        self._num_left, self._num_threads = len(feeds), num_threads
        self._changed = Condition()

    @property
    def are_few(self) -> bool:
        """True if some threads have no stream of their own."""
        return self._num_left < self._num_threads

    def take(self) -> _Stream[T] | None:
        """Waits for a stream that no thread reads; returns None if all have ended, or after ``stop``."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._num_left)
            return self._waiting.popleft() if self._waiting else None

    def give_back(self, stream: _Stream[T]) -> None:
        """Lets another thread read ``stream``, or the same one."""
        with self._changed:
            if self._num_left:
                self._waiting.appendleft(stream)
                self._changed.notify()

    def drop(self) -> None:
        """Forgets a stream that has ended."""
        with self._changed:
            self._num_left = max(self._num_left - 1, 0)
            if not self._num_left:
                self._changed.notify_all()

    def prefetch(self) -> None:
        """Prefetches the streams that threads take next."""
        with self._changed:
            for stream in islice(self._waiting, self._num_threads):
                stream.prefetch()

    def stop(self) -> None:
        """Makes ``take`` return None, so that all threads end."""
        with self._changed:
            self._waiting.clear()
            self._num_left = 0
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the files; no thread may be reading."""
        for stream in self._all:
            stream.close()
