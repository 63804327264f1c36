"""Preparing what comes next while the present is being used."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def read_ahead(source: Iterator[T], depth: int) -> Generator[T, None, None]:
    """The items of ``source``, up to ``depth`` of them prepared beforehand by a thread.

    An error of ``source`` is raised here, in its turn, with its own traceback. The thread ends with the
    source, or when this generator is closed, after the item that it is at.
    """
    end = object()
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
    try:
        ready: deque[Future[T | object]] = deque(pool.submit(next, source, end) for _ in range(depth))
        while (item := ready.popleft().result()) is not end:
            ready.append(pool.submit(next, source, end))
            yield item  # type: ignore[misc]  # anything but ``end`` is a T
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
