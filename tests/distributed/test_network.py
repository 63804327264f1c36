"""The interface that gloo is told to use is the one that leads to the others."""

import socket

from dlrm_app.distributed.network import interface_towards


def test_it_is_an_interface_of_this_machine_that_is_found_even_where_the_way_leads_through_loopback() -> None:
    names = {name for _, name in socket.if_nameindex()}
    assert interface_towards("127.0.0.1") in names


def test_an_unknown_host_has_none() -> None:
    assert interface_towards("no-such-host.invalid") is None
