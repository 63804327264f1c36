"""Work in threads, results in order, and only so many of them waiting."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], num_threads: int
) -> Iterator[tuple[Item, Result]]:
    """(item, ``work(item)``) in the order of ``items``; at most ``num_threads`` + 1 results are held."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="check") as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > num_threads:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
