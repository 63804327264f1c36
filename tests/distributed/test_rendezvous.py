"""Attempts of one job never share a key, whatever the attempts before them left in the store."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.rendezvous import fresh_store, interface_towards, name_interfaces, number_attempt
from dlrm_app.distributed.runtime import start_runtime

TIMEOUT = timedelta(seconds=20)


def attempt(store: HashStore, ranks: range, world_size: int) -> list[int]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: number_attempt(store, rank, world_size, TIMEOUT), ranks))


def test_ranks_share_a_number_that_differs_by_attempt() -> None:
    store = HashStore()
    assert [set(attempt(store, range(4), 4)) for _ in range(3)] == [{1}, {2}, {3}]


def test_keys_of_a_dead_attempt_do_not_mislead_the_next() -> None:
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


def test_finds_an_interface_despite_a_loopback_route() -> None:
    names = {name for _, name in socket.if_nameindex()}
    assert interface_towards("127.0.0.1") in names


def ranks(world_size: int, local_world_size: int) -> Ranks:
    return Ranks(0, 0, world_size, local_world_size, "cuda")


def test_gloo_and_nccl_get_the_same_interface() -> None:
    """NCCL exactly that one: without "=" a name is a prefix, and eth1 is eth10 too."""
    environment = {"MASTER_ADDR": "127.0.0.1"}
    assert name_interfaces(ranks(16, 8), environment) == ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
    interface = interface_towards("127.0.0.1")
    assert environment["GLOO_SOCKET_IFNAME"] == interface
    assert environment["NCCL_SOCKET_IFNAME"] == f"={interface}"


def test_ranks_of_one_machine_meet_on_loopback_alone() -> None:
    environment: dict[str, str] = {}
    name_interfaces(ranks(8, 8), environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}


def test_an_interface_named_by_the_user_is_kept() -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "NCCL_SOCKET_IFNAME": "ib"}
    assert name_interfaces(ranks(16, 8), environment) == ["GLOO_SOCKET_IFNAME"]
    assert environment["NCCL_SOCKET_IFNAME"] == "ib"


def test_without_a_route_to_the_others_the_libraries_choose() -> None:
    environment = {"MASTER_ADDR": "no-such-host.invalid"}
    assert name_interfaces(ranks(16, 8), environment) == []
    assert environment == {"MASTER_ADDR": "no-such-host.invalid"}


def listening() -> set[tuple[str, str]]:
    """(socket, address as the kernel writes it) of all on which this process listens."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    inodes = {str(link.readlink()).strip("socket:[]") for link in links if link.is_symlink()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return {(row[9], row[1].split(":")[0]) for row in rows if row[3] == "0A" and row[9] in inodes}


def test_ranks_of_one_machine_listen_where_no_other_reaches_them() -> None:
    before = listening()
    with start_runtime(num_threads=1):
        assert {address for _, address in listening() - before} == {"0100007F"}
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} & set(os.environ)
