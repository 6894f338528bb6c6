"""The lifeline: a socket pair between the daemon and each process it starts.

Down it go the plan and questions, up come states, answers and heartbeats. When the daemon dies the kernel closes it,
and the process ends itself within a bound, whatever its event loop is doing.
"""

import asyncio
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from dynamod.message.node import Answer, Ask, Heartbeat, State
from dynamod.transport.framing import Unframer, pack

log = logging.getLogger("dynamod.daemon")

_encoder = msgspec.msgpack.Encoder()
_up = msgspec.msgpack.Decoder(State | Answer | Heartbeat)
_down = msgspec.msgpack.Decoder(Ask)

ORPHAN_GRACE = 3.5
"""Seconds an orphan gets to end by itself; then it is killed, with all it started. The promise is 5."""


class Lifeline:
    """One end over asyncio. `take` is called with every word; `closed` when the other end is gone."""

    def __init__(self, take: Callable[[Any], None], closed: Callable[[], None], *, upper: bool) -> None:
        self._take, self._closed = take, closed
        self._decoder: Any = _up if upper else _down
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, sock: socket.socket) -> None:
        """Read until the other end is gone."""
        reader, self._writer = await asyncio.open_unix_connection(sock=sock)
        unframer = Unframer(magic=False)
        try:
            while data := await reader.read(1 << 16):
                for payload in unframer.feed(data):
                    self._take(self._decoder.decode(payload))
        except OSError as error:
            log.debug("lifeline broke: %s", error)
        finally:
            self._writer.close()
            self._writer = None
            self._closed()

    def say(self, message: State | Answer | Heartbeat | Ask) -> None:
        """Send a word; dropped when the other end is gone."""
        if self._writer is not None:
            self._writer.write(pack(_encoder.encode(message)))


def receive_plan(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Read the plan and the descriptors that come with it: the first payload, before any loop runs."""
    unframer = Unframer(magic=False)
    fds: list[int] = []
    while True:
        data, new, _, _ = socket.recv_fds(sock, 1 << 16, 16)
        fds += new
        if not data:
            raise SystemExit(0)  # nobody needs us
        for payload in unframer.feed(data):
            return payload, fds


def die_with_parent(sock: socket.socket, stop: Callable[[], object]) -> None:
    """Watch the lifeline from a thread: when the daemon is gone ask to `stop`, and after ORPHAN_GRACE kill the group.

    A thread, because a native engine may hold the event loop for long.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLHUP | getattr(select, "POLLRDHUP", 0))
        while True:
            events = poll.poll()
            if any(event & (select.POLLHUP | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)) for _, event in events):
                break
        stop()
        time.sleep(ORPHAN_GRACE)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
