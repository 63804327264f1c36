"""Attempts of one job never share a key, whatever the attempts before them left in the store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from dlrm_app.distributed.rendezvous import fresh_store, number_attempt

TIMEOUT = timedelta(seconds=20)


def attempt(store: HashStore, ranks: range, world_size: int) -> list[int]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: number_attempt(store, rank, world_size, TIMEOUT), ranks))


def test_every_rank_gets_the_same_number_and_every_attempt_another() -> None:
    store = HashStore()
    assert [set(attempt(store, range(4), 4)) for _ in range(3)] == [{1}, {2}, {3}]


def test_what_a_dead_attempt_left_misleads_nobody() -> None:
    """Ranks that said hello and died, and a first rank that died inviting, leave the next attempt alone."""
    store = HashStore()
    for rank in (1, 2):
        store.set(f"hello/{rank}", "of the dead")
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] did not come"):
        number_attempt(store, 0, 3, timedelta(seconds=0.2))
    assert set(attempt(store, range(3), 3)) == {2}


def test_keys_of_two_attempts_do_not_meet() -> None:
    store = HashStore()
    first = fresh_store(store, 0, 1, TIMEOUT)
    first.set("address", "old")
    assert not fresh_store(store, 0, 1, TIMEOUT).check(["address"])
