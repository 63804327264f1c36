"""The network interface by which this machine speaks to the others, and how gloo and NCCL are told."""

import fcntl
import socket
import struct
from collections.abc import MutableMapping

from dlrm_app.distributed.ranks import Ranks

SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address (netdevice(7))."""


def name_interfaces(ranks: Ranks, environment: MutableMapping[str, str]) -> list[str]:
    """Tells gloo and NCCL the interface towards MASTER_ADDR, or loopback between ranks of one machine, where nobody has.

    Gives the names of the variables that it set in ``environment``.
    """
    is_one_machine = ranks.world_size == ranks.local_world_size
    interface = loopback() if is_one_machine else interface_towards(environment["MASTER_ADDR"])
    if interface is None:
        return []
    # NCCL takes a name for a prefix, and "=" for all of it
    wanted = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    missing = [variable for variable in wanted if variable not in environment]
    environment.update({variable: wanted[variable] for variable in missing})
    return missing


def interface_towards(host: str) -> str | None:
    """The interface by which this machine reaches the IPv4 ``host``; None if that cannot be told.

    gloo looks up this machine's own name instead, which many machines resolve to 127.0.1.1: others then connect
    to themselves. On ``host`` itself, where the way leads through lo, the way to anywhere is taken.
    """
    address = _address_towards(host)
    if address is not None and address.startswith("127."):
        address = _address_towards("192.0.2.1") or address  # an address for documentation, RFC 5737
    return _interface_of(address) if address else None


def loopback() -> str | None:
    """The interface that no other machine reaches: where gloo of ranks on one machine listens."""
    return _interface_of("127.0.0.1")


def _address_towards(host: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # looks up the route; a datagram socket sends nothing on connecting
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
