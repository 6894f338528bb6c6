"""TCP ports of this machine: whether a server can listen, and which process does, as /proc shows it."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dynamod.observe.processes import PROC

_LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""
SEARCH_LIMIT_S = 0.5
"""Seconds for the search: the daemon does nothing else meanwhile."""


class Listener(NamedTuple):
    """A listening socket: the id of its user, and its inode."""

    user: int
    inode: str


def port_owner(port: int, proc: Path = PROC) -> str:
    """`process 123 (nginx)`; empty for a port without a listener and for a process that this user may not look at."""
    sockets = {f"socket:[{one.inode}]" for one in listeners(port, proc)}
    end = time.monotonic() + SEARCH_LIMIT_S
    for folder in proc.iterdir() if sockets else ():
        if time.monotonic() > end:
            break
        if folder.name.isdigit() and sockets & {*_descriptors(folder)}:
            return f"process {folder.name}{_program(folder)}"
    return ""


def port_problem(host: str, port: int) -> str:
    """Why a server cannot listen there; empty when it can."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            return str(error.strerror)
    return ""


def listeners(port: int, proc: Path = PROC) -> Iterator[Listener]:
    """The sockets that listen on a TCP port, at any address; none where the system does not say."""
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    yield Listener(int(fields[7]), fields[9])


def _descriptors(folder: Path) -> Iterator[str]:
    """What the open descriptors of a process are; none where this user may not look, or the process has ended."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder / "fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)


def _program(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return f" ({(folder / 'comm').read_text().strip()})"
    return ""
