"""Where components listen: the loopback of both families without a host, one port at all addresses."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dynamod.daemon import sockets as module
from dynamod.daemon.sockets import LOOPBACK, Sockets, close_all, hosts_of, listen, url_of
from dynamod.message.errors import UserError
from tests.ports import free_port, has_ipv6

BOTH = {"127.0.0.1", "::1"} if has_ipv6() else {"127.0.0.1"}
needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback")


@pytest.fixture
def opened() -> Iterator[list[Sockets]]:
    found: list[Sockets] = []
    yield found
    for sockets in found:
        close_all(sockets)


def addresses(sockets: Sockets) -> set[str]:
    return {sock.getsockname()[0] for sock in sockets}


@pytest.mark.parametrize("port", [0, None])
def test_without_a_host_both_loopbacks_have_one_port(port: int | None, opened: list[Sockets]) -> None:
    wanted = free_port() if port is None else port
    sockets = listen(hosts_of(""), wanted, "Frontend")
    opened.append(sockets)
    assert addresses(sockets) == BOTH
    ports = {sock.getsockname()[1] for sock in sockets}
    assert len(ports) == 1
    assert wanted in (0, *ports)
    for address in BOTH:
        socket.create_connection((address, ports.pop() if len(BOTH) == 1 else sockets[0].getsockname()[1])).close()
    assert (
        url_of(sockets, "http")
        == f"http://{'localhost' if len(BOTH) == 2 else '127.0.0.1'}:{sockets[0].getsockname()[1]}"
    )


def test_a_free_port_is_one_that_is_free_at_every_address(
    opened: list[Sockets], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's choice for the first address is taken at the second one, once."""
    bound, calls = module._bound, list[int]()

    def unlucky(place: module._Place, port: int, who: str, owner: Any, *, alone: bool) -> socket.socket | None:
        calls.append(port)
        if len(calls) == 2:
            raise UserError(f"{who} cannot listen: port {port} is in use")
        return bound(place, port, who, owner, alone=alone)

    monkeypatch.setattr(module, "_bound", unlucky)
    sockets = listen((LOOPBACK,), 0, "Frontend")
    opened.append(sockets)
    assert addresses(sockets) == BOTH
    assert [bool(port) for port in calls] == [False, True, False, True]


def test_a_machine_without_ipv6_listens_at_ipv4(opened: list[Sockets], monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def no_ipv6(family: int, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *rest)

    monkeypatch.setattr(module.socket, "socket", no_ipv6)
    sockets = listen((LOOPBACK,), 0, "Frontend")
    opened.append(sockets)
    assert addresses(sockets) == {"127.0.0.1"}


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_stranger_at_either_loopback_is_an_error(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"):
            listen((LOOPBACK,), port, "Frontend")
        other = "127.0.0.1" if ":" in address else "::1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port)).close()


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("", ("localhost",)),
        (" , ", ("localhost",)),
        ([], ("localhost",)),
        ("0.0.0.0", ("0.0.0.0",)),
        ("127.0.0.1, ::1", ("127.0.0.1", "::1")),
        (["127.0.0.1", "::1", "127.0.0.1"], ("127.0.0.1", "::1")),
    ],
)
def test_the_hosts_of_a_setting(host: object, found: tuple[str, ...]) -> None:
    assert hosts_of(host) == found


@pytest.mark.parametrize("host", [7, True, None, ["127.0.0.1", 7], {"a": "b"}])
def test_what_names_no_host_is_an_error(host: object) -> None:
    with pytest.raises(UserError, match="`host` is"):
        hosts_of(host)


@needs_ipv6
@pytest.mark.parametrize(
    ("hosts", "found", "url"),
    [
        (("0.0.0.0",), {"0.0.0.0"}, "localhost"),
        (("::",), {"::"}, "localhost"),
        (("0.0.0.0", "::"), {"0.0.0.0", "::"}, "localhost"),
        (("127.0.0.1",), {"127.0.0.1"}, "127.0.0.1"),
        (("::1",), {"::1"}, "[::1]"),
        (("localhost", "127.0.0.1"), {"127.0.0.1", "::1"}, "localhost"),
        (("127.0.0.2", "localhost"), {"127.0.0.2", "127.0.0.1", "::1"}, "127.0.0.2"),
    ],
)
def test_given_hosts(hosts: tuple[str, ...], found: set[str], url: str, opened: list[Sockets]) -> None:
    sockets = listen(hosts, 0, "Frontend")
    opened.append(sockets)
    assert addresses(sockets) == found
    assert url_of(sockets, "http") == f"http://{url}:{sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70, "256.1.1.1"])
def test_an_unknown_host_is_one_line(host: str) -> None:
    with pytest.raises(UserError, match="cannot listen on"):
        listen((host,), 0, "Frontend")
