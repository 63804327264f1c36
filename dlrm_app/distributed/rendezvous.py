"""Joins ranks: the network interface, a store that no earlier attempt has written to, the process group.

torchrun keeps one TCPStore for all attempts of a job (torch 2.13). gloo then finds in it the addresses of ranks
that died, and the restarted ranks wait for them forever. TORCHELASTIC_RESTART_COUNT does not identify an attempt,
because each node counts its own restarts. So the first rank numbers the attempt and invites every other rank that
is alive, by a nonce that only a living rank can have written. Keys then get the attempt's number as a prefix.
"""

import fcntl
import os
import socket
import struct
import time
import uuid
from collections.abc import MutableMapping
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore, distributed_c10d

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import DlrmError, Problem, first_line

TIMEOUT = timedelta(minutes=10)
"""The default time that a rank waits for another: long enough to write a checkpoint that others wait for."""
POLL_SECONDS = 0.02


def number_attempt(store: Store, rank: int, world_size: int, timeout: timedelta) -> int:
    """The number of this attempt: the same on all ``world_size`` living ranks, and never used before.

    If a rank does not come, raises TimeoutError on the first rank and torch's DistStoreError on the others.
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
                # may be a dead rank's: then a later round finds the new one
                nonce = store.get(f"hello/{rank}").decode()
                store.set(f"invite/{rank}/{nonce}", str(attempt))
        waiting = {rank for rank in waiting if not store.check([f"confirm/{attempt}/{rank}"])}
        time.sleep(POLL_SECONDS)
    return attempt


def fresh_store(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """``store`` with a key prefix of this attempt."""
    return PrefixStore(f"attempt_{number_attempt(store, rank, world_size, timeout)}", store)


SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address (netdevice(7))."""


def name_interfaces(ranks: Ranks, environment: MutableMapping[str, str]) -> list[str]:
    """Sets gloo's and NCCL's interface, unless it is set: the one towards MASTER_ADDR, or loopback on one machine.

    Returns the names of the variables that it set in ``environment``.
    """
    is_one_machine = ranks.world_size == ranks.local_world_size
    # loopback: other machines cannot connect to gloo
    interface = (
        _interface_of("127.0.0.1") if is_one_machine else interface_towards(environment["MASTER_ADDR"])
    )
    if interface is None:
        return []
    # NCCL treats a name as a prefix, unless "=" is put before it
    wanted = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    missing = [variable for variable in wanted if variable not in environment]
    environment.update({variable: wanted[variable] for variable in missing})
    return missing


def interface_towards(host: str) -> str | None:
    """The interface by which this machine reaches the IPv4 ``host``; None if it cannot be found.

    By default gloo looks up this machine's own name, which many machines resolve to 127.0.1.1, so that others connect
    to themselves. On ``host`` itself, whose route is loopback, the default route's interface is taken.
    """
    address = _address_towards(host)
    if address is not None and address.startswith("127."):
        address = _address_towards("192.0.2.1") or address  # an address for documentation, RFC 5737
    return _interface_of(address) if address else None


def _address_towards(host: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # only looks up the route: connecting a datagram socket sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def _interface_of(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def join(ranks: Ranks, timeout: timedelta) -> None:
    """Makes the process group of all ranks. Raises DlrmError if the ranks cannot meet at their address."""
    backend = "cpu:gloo,cuda:nccl" if ranks.device_type == "cuda" else "gloo"
    # groups that libraries make later would otherwise get torch's default of half an hour
    distributed_c10d.default_pg_timeout = timeout
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun: this may be a restart
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        shared = TCPStore(address, port, ranks.world_size, is_master=False, timeout=TIMEOUT)
        store = fresh_store(shared, ranks.rank, ranks.world_size, TIMEOUT)
        dist.init_process_group(
            backend, store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
        )
    elif "MASTER_ADDR" in os.environ and "RANK" in os.environ:
        join_process_group(backend, timeout)
    else:
        store = HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def group_problems(device_type: str) -> list[Problem]:
    """Problems: a process group that the process has already, and that cannot carry a job's messages."""
    has = dict(part.partition(":")[::2] for part in str(dist.get_backend_config()).split(","))
    wanted = {"cpu": "gloo", "cuda": "nccl"} if device_type == "cuda" else {"cpu": "gloo"}
    if all(has.get(device) == backend for device, backend in wanted.items()):
        return []
    needed = ",".join(f"{device}:{backend}" for device, backend in wanted.items())
    rule = f"has the backends {dist.get_backend_config()}, a job needs {needed}"
    cure = f'make it with init_process_group("{needed}"), or leave making it to the job'
    return [Problem("the process group", rule, cure)]


def join_process_group(backend: str, timeout: timedelta) -> None:
    try:
        dist.init_process_group(backend, timeout=timeout)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
        raise DlrmError(
            f"rank {os.environ['RANK']} cannot meet the others at {address}: {first_line(error)}\n"
            "  all must be started, reach that address, and leave its port to this run alone: torchrun's "
            "--master-port, or MASTER_PORT, chooses another"
        ) from error
