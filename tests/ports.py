"""Ports for what tests start. Not a test: the tests of every room share it (`from ..ports import free_port`)."""

import errno
import random
import socket
import sys
from collections import deque
from pathlib import Path

_given: set[int] = set()
"""Ports that may be used a moment later."""
_reserved: "deque[socket.socket]" = deque()
"""Names of the last ones. No other process of tests gets such a port, also while its server is down for a while."""
RESERVED = 512
OF_CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str = "127.0.0.1") -> int:
    """One that nobody listens on, and that the kernel gives no client as its own.

    A server that is down for a while, or a test that connects before its server starts, would lose such a port to one
    of them.
    """
    for number in random.SystemRandom().sample(_for_servers(), 200):  # hypothesis seeds the usual one
        if number in _given or not _reserve(number):
            continue
        with socket.socket() as sock:
            sock.settimeout(1.0)
            # not by a bind: a process that another thread forks at this moment would hold the port until it has
            # started its program
            if sock.connect_ex((host, number)) == errno.ECONNREFUSED:
                _given.add(number)
                return number
    raise AssertionError("no port is free")


def _for_servers() -> range:
    """Numbers that the kernel gives no client: below its range for clients (from 32768 in most systems), or above."""
    try:
        first, last = map(int, OF_CLIENTS.read_text().split())
    except OSError:
        first, last = 32_768, 60_999
    rooms = range(15_000, min(30_000, first)), range(5_000, min(15_000, first)), range(last + 1, 65_536)
    return max(rooms, key=len) or range(15_000, 30_000)


def _reserve(number: int) -> bool:
    """Whether no thread and no other process of tests has been given this one just now."""
    if sys.platform != "linux":
        return True
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0dynamod-test-port-{number}")
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    while len(_reserved) > RESERVED:
        _reserved.popleft().close()
    return True


def listener() -> socket.socket:
    """Listens on a port of this machine that the kernel has chosen."""
    return socket.create_server(("127.0.0.1", 0))


def has_ipv6() -> bool:
    """Whether this machine has the loopback address ::1."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True
