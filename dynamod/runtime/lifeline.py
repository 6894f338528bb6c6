"""A component process's end of the socket pair to its daemon, before its event loop runs and alongside it.

The plan comes first, with the sockets to listen on; then the pair is the process's connection. When the daemon dies the
kernel closes it, and the process ends itself within a bound, whatever its event loop is doing.
"""

import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable

ORPHAN_GRACE = 3.5
"""Seconds an orphan gets to end on its own; then it is killed, with all it started. The promise is 5."""


def default_signals() -> None:
    """Restore the default action of signals that the daemon may have inherited as ignored (`nohup dynamo serve &`).

    A component, and each program that it starts, then ends at SIGINT, SIGHUP and SIGQUIT like one from a terminal.
    """
    for number, action in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, action)


def receive_plan(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Read the plan and the descriptors that come with it, and nothing that follows. Exits when the daemon is gone."""
    head, fds, _, _ = socket.recv_fds(sock, 4, 16)
    while head and len(head) < 4:
        head += sock.recv(4 - len(head))
    (missing,) = struct.unpack("<I", head) if head else (0,)
    parts: list[bytes] = []
    while missing:
        part = sock.recv(min(missing, 1 << 16))
        if not part:
            break
        parts.append(part)
        missing -= len(part)
    if not parts or missing:
        raise SystemExit(0)  # the process has no task
    return b"".join(parts), list(fds)


def die_with_parent(sock: socket.socket, stop: Callable[[], object]) -> None:
    """Watch the socket from a thread: when the daemon is gone ask to `stop`, and after ORPHAN_GRACE kill the group.

    A thread, because a native engine may hold the event loop for long.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLHUP | select.POLLRDHUP)
        while True:
            events = poll.poll()
            if any(event & (select.POLLHUP | select.POLLNVAL | select.POLLRDHUP) for _, event in events):
                break
        stop()
        time.sleep(ORPHAN_GRACE)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
