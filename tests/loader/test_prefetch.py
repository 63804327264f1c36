"""Work beforehand: the same items, the same errors, and no thread left behind."""

import threading
import time
import traceback
from collections.abc import Generator

import pytest

from dlrm_app.loader.prefetch import map_in_order, prefetch_items


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def fail_after(count: int) -> Generator[int, None, None]:
    yield from range(count)
    raise KeyError("bad row group")


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_all_items_come_in_order(depth: int) -> None:
    """More prepared than there are, or fewer."""
    assert list(prefetch_items((item for item in range(20)), depth)) == list(range(20))
    assert threads() == []


def test_results_of_many_threads_come_in_the_order_of_the_items() -> None:
    """The first takes longest; no more are begun than may wait."""
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        time.sleep(0.05 / (item + 1))
        return item * item

    results = map_in_order(work, range(20), num_threads=4, num_waiting=6)
    assert next(results) == 0
    assert len(begun) <= 7
    assert list(results) == [item * item for item in range(1, 20)]
    assert threads() == []


def test_an_error_comes_in_its_turn_with_its_own_traceback() -> None:
    """The good items first; then the frames that failed, as if there were no thread."""
    stream = prefetch_items(fail_after(3), depth=2)
    found = [next(stream) for _ in range(3)]
    with pytest.raises(KeyError, match="bad row group") as caught:
        next(stream)
    assert found == [0, 1, 2]
    assert "fail_after" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert threads() == []


def test_items_are_prepared_in_a_thread_that_ends_with_its_user() -> None:
    """By another thread, as many as the depth and no more."""
    made: list[str] = []
    two_made = threading.Event()

    def source() -> Generator[int, None, None]:
        for item in range(1000):
            made.append(threading.current_thread().name)
            if item == 2:
                two_made.set()
            yield item

    stream = prefetch_items(source(), depth=2)
    next(stream)
    assert two_made.wait(timeout=60)
    time.sleep(0.05)  # were it to read on without bound, it would by now
    assert len(made) == 3
    assert threading.current_thread().name not in made
    stream.close()
    assert threads() == []
    assert len(made) <= 4
