"""Ports for what tests start. Not a test: the tests of every room share it (`from ..ports import free_port`)."""

import asyncio
import errno
import random
import socket
import sys
from collections import deque

_given: set[int] = set()
"""Ports that may be used a moment later."""
_reserved: "deque[socket.socket]" = deque()
"""Names of the last ones. No other process of tests gets such a port, also while its server is down for a while."""
RESERVED = 512


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which no server listens. The kernel gives no client this port as the client's own.

    Clients get theirs from 32768 on: a server that is down for a while, or a test that connects before its server
    starts, would lose such a port to one of them.
    """
    for number in random.SystemRandom().sample(range(15_000, 30_000), 200):  # hypothesis seeds the usual one
        if number in _given or not _reserve(number):
            continue
        with socket.socket() as sock:
            sock.settimeout(1.0)
            # a connection and no bind: a process that another thread forks at this moment would inherit the bound
            # socket, and hold the port until the process has started its program
            if sock.connect_ex((host, number)) == errno.ECONNREFUSED:
                _given.add(number)
                return number
    raise AssertionError("no port is free")


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


async def accept_no_more(*listening: int) -> None:
    """Call it before a server of this process and loop is closed; `listening` are the descriptors of its sockets.

    What was accepted a moment ago is a connection two turns later. If its server is closed before, asyncio loses its
    socket, open (Python 3.11), and the test that runs next fails by a ResourceWarning.
    """
    for one in listening:
        asyncio.get_running_loop().remove_reader(one)
    for _ in range(3):
        await asyncio.sleep(0)


def has_ipv6() -> bool:
    """Whether this machine has the loopback address ::1."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True
