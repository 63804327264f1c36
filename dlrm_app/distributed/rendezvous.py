"""A store that no earlier attempt has written to, for ranks that torchrun has restarted.

torchrun keeps one TCPStore for all attempts of a job (torch 2.13), and gloo finds in it the addresses of the ranks
that died: the restarted ones wait for them for ever. TORCHELASTIC_RESTART_COUNT does not tell the attempts apart,
for on several nodes each counts its own. So the first rank numbers the attempt and invites every other rank that
is alive, by a nonce that no dead one can have written for it; keys then get the attempt's number as a prefix.
"""

import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, Store

POLL_SECONDS = 0.02


def number_attempt(store: Store, rank: int, world_size: int, timeout: timedelta) -> int:
    """The number of this attempt, the same on all ``world_size`` living ranks and on none before.

    Raises TimeoutError on the first rank, torch's DistStoreError on the others, if some do not come.
    """
    if rank == 0:
        return _invite(store, world_size, timeout)
    nonce = uuid.uuid4().hex
    store.set(f"hello/{rank}", nonce)
    key = f"invite/{rank}/{nonce}"
    store.wait([key], timeout)
    attempt = int(store.get(key))
    store.set(f"confirm/{attempt}/{rank}", "1")
    return attempt


def _invite(store: Store, world_size: int, timeout: timedelta) -> int:
    attempt = int(store.add("attempts", 1))
    deadline = time.monotonic() + timeout.total_seconds()
    waiting = set(range(1, world_size))
    while waiting:
        if time.monotonic() > deadline:
            raise TimeoutError(f"ranks {sorted(waiting)} did not come within {timeout}")
        for rank in sorted(waiting):
            if store.check([f"hello/{rank}"]):
                nonce = store.get(
                    f"hello/{rank}"
                ).decode()  # perhaps a dead one's: then a later look finds another
                store.set(f"invite/{rank}/{nonce}", str(attempt))
        waiting = {rank for rank in waiting if not store.check([f"confirm/{attempt}/{rank}"])}
        time.sleep(POLL_SECONDS)
    return attempt


def fresh_store(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """``store`` seen through a prefix of this attempt's own."""
    return PrefixStore(f"attempt_{number_attempt(store, rank, world_size, timeout)}", store)
