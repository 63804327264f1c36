"""Runs work ahead in threads and yields the results in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import repeat
from typing import TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


def map_in_order(
    work: Callable[[Item], T], items: Iterable[Item], num_threads: int, num_waiting: int
) -> Generator[T, None, None]:
    """Yields ``work(item)`` for each of ``items``; up to ``num_waiting`` of them are worked on ahead.

    An error of ``work`` is raised here, in order, with its own traceback. The threads end with the items or when
    this generator is closed, after their current items.
    """
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="prefetch") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > num_waiting:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def prefetch_items(source: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """Yields the items of ``source``; one thread prepares up to ``depth`` of them ahead, see ``map_in_order``.

    ``source`` is closed with this generator.
    """
    end = object()
    with closing(source), closing(map_in_order(lambda _: next(source, end), repeat(None), 1, depth)) as items:
        for item in items:
            if item is end:
                return
            yield item  # type: ignore[misc]  # anything but ``end`` is a T
