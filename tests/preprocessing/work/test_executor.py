"""The laws of running a pass in threads: every item once, few at a time, errors raised, nothing left running."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from dlrm_app.journal import Journal
from dlrm_app.preprocessing.work.executor import Finish, LocalExecutor, NumberedItem, SingleFeed

PATIENCE = 20.0
"""Seconds after which a test gives up waiting for another thread."""


@dataclass(frozen=True)
class Numbers:
    """The numbers from ``start`` to ``stop``; ``is_open``: set while they are read; ``reader``: held for each read."""

    start: int
    stop: int
    is_open: threading.Event = field(default_factory=threading.Event)
    reader: threading.Lock = field(default_factory=threading.Lock)

    def prefetched(self) -> "Numbers":
        return self

    def items(self) -> Generator[NumberedItem, None, None]:
        self.is_open.set()
        try:
            for number in range(self.start, self.stop):
                assert self.reader.acquire(blocking=False), "two threads read one feed"
                self.reader.release()
                yield NumberedItem(number)
        finally:
            self.is_open.clear()


@dataclass(frozen=True)
class Doing:
    """Calls ``act`` with each number; the record is the number."""

    title: ClassVar[str] = "doing"
    act: Callable[[int], object] = lambda number: None
    journal: Journal[int] = field(default_factory=lambda: Journal(Path(), int))

    def __call__(self, item: NumberedItem) -> Finish[int]:
        self.act(item.number)
        return lambda: item.number


def run(num_threads: int, act: Callable[[int], object], *feeds: Numbers) -> list[int]:
    return list(LocalExecutor(num_threads).run(Doing(act), feeds))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("sizes", [[], [0], [1], [30], [0, 7, 0, 1, 12], [1] * 40])
def test_each_item_is_worked_on_once(num_threads: int, sizes: list[int]) -> None:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    feeds = [Numbers(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    worked: list[int] = []
    records = run(num_threads, worked.append, *feeds)
    assert sorted(worked) == sorted(records) == list(range(sum(sizes)))
    assert not any(feed.is_open.is_set() for feed in feeds)


def test_one_thread_takes_feeds_in_order() -> None:
    assert run(1, lambda _: None, Numbers(0, 3), Numbers(3, 5), Numbers(5, 9)) == list(range(9))


def test_threads_share_a_single_feed() -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE)
    assert sorted(run(3, lambda _: meeting.wait(), Numbers(0, 9))) == list(range(9))


def test_a_thread_keeps_its_feed_where_there_are_enough() -> None:
    """As for many compressed files: a unit that is detached is read whole, which takes memory."""

    @dataclass(frozen=True)
    class Text(NumberedItem):
        def detach(self) -> bool:
            raise AssertionError("there are as many feeds as threads")

    feeds = [SingleFeed(Text(number)) for number in range(2)]
    meeting = threading.Barrier(2, timeout=PATIENCE)
    assert sorted(LocalExecutor(2).run(Doing(lambda _: meeting.wait()), feeds)) == [0, 1]


def test_no_more_items_than_threads_are_in_memory() -> None:
    alive, most = 0, 0
    guard = threading.Lock()

    class Counted(NumberedItem):
        def __init__(self, number: int) -> None:
            nonlocal alive, most
            super().__init__(number)
            with guard:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with guard:
                alive -= 1

    class Many(Numbers):
        def items(self) -> Generator[NumberedItem, None, None]:
            for number in range(self.start, self.stop):
                yield Counted(number)

    class Forgetting(Doing):
        def __call__(self, item: NumberedItem) -> Finish[int]:
            number = item.number
            time.sleep(0.001)
            return lambda: number

    for feeds in ([Many(0, 40)], [Many(10 * number, 10 * number + 10) for number in range(4)]):
        alive = most = 0
        assert sorted(LocalExecutor(3).run(Forgetting(), feeds)) == list(range(40))
        assert 1 <= most <= 3
        assert alive == 0


def test_the_first_error_is_raised_and_all_work_stops() -> None:
    worked: list[int] = []
    feeds = [Numbers(1000 * number, 1000 * number + 1000) for number in range(8)]

    def fail(number: int) -> None:
        worked.append(number)
        time.sleep(0.0005)
        if number == 1005:
            raise ValueError("line 1005")

    with pytest.raises(ValueError, match="line 1005"):
        run(2, fail, *feeds)
    count = len(worked)
    time.sleep(0.05)
    assert len(worked) == count < 8000
    assert not any(feed.is_open.is_set() for feed in feeds)


def test_an_error_of_a_feed_is_raised() -> None:
    class Damaged(Numbers):
        def items(self) -> Generator[NumberedItem, None, None]:
            yield NumberedItem(0)
            raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        run(2, lambda _: None, Damaged(0, 2), Numbers(1, 100))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_a_caller_that_stops_leaves_no_thread_at_work(stop: type[BaseException]) -> None:
    worked: list[int] = []
    feed = Numbers(0, 1 << 60)
    before = {*threading.enumerate()}

    def consume() -> None:
        with closing(LocalExecutor(3).run(Doing(worked.append), [feed])) as records:
            for number in records:
                if number >= 10:
                    raise stop

    with pytest.raises(stop):
        consume()
    assert {*threading.enumerate()} <= before  # those of other tests may end meanwhile
    assert len(worked) >= 10
    assert not feed.is_open.is_set()


def test_the_callers_thread_finishes_items() -> None:
    finished: list[threading.Thread] = []

    class Finishing(Doing):
        def __call__(self, item: NumberedItem) -> Finish[int]:
            assert threading.current_thread() is not caller

            def finish() -> int:
                finished.append(threading.current_thread())
                return item.number

            return finish

    caller = threading.current_thread()
    assert sorted(LocalExecutor(2).run(Finishing(), [Numbers(0, 5)])) == list(range(5))
    assert finished == [caller] * 5


def test_the_next_feeds_are_prefetched_during_work() -> None:
    prefetched: list[int] = []

    class Remote(Numbers):
        def prefetched(self) -> Numbers:
            prefetched.append(self.start)
            return Numbers(self.start, self.stop)

    def check(number: int) -> None:
        assert prefetched == [start for start in (1, 2, 3, 4, 5) if start <= number + 1]

    assert run(1, check, *(Remote(number, number + 1) for number in range(6))) == list(range(6))
