#!/usr/bin/env python3
"""A server that only sends: each stream gets frames as long as a token's, from a loop that calls `os.write`.

sends.py PORT RATE

The CPU time of a frame here is the least that a token costs in a server that writes tokens one by one. `ingresses.py
--sends` measures both. The first bytes of a connection open its stream; what they ask for is not read.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
DATA = b"data: {" + b"x" * 230 + b"}\n\n"
FRAME = b"%x\r\n%b\r\n" % (len(DATA), DATA)
TURN = 0.006
"""Seconds between two turns of the loop: that of 64 streams in `ingresses.py`."""


class Stream(asyncio.Protocol):
    """A client's connection. `ring`: the sockets of all streams, the next one first."""

    def __init__(self, ring: deque[int]) -> None:
        self._ring = ring
        self._socket = -1
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._socket = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if not self._open:
            self._open = True
            os.write(self._socket, HEAD)
            self._ring.append(self._socket)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the event loop."""
        if self._open:
            self._ring.remove(self._socket)


async def serve(port: int, rate: float) -> None:
    """Send `rate` frames per second, to the open streams in turn, until the process is ended."""
    ring: deque[int] = deque()
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Stream(ring), "127.0.0.1", port, backlog=8192)
    each, write = max(round(rate * TURN), 1), os.write
    at = loop.time()
    while True:
        at = max(at + TURN, loop.time() - TURN)
        await asyncio.sleep(at - loop.time())
        for _ in range(min(each, len(ring))):
            with contextlib.suppress(OSError):  # the client has left
                write(ring[0], FRAME)
            ring.rotate(-1)


@contextlib.contextmanager
def listening(script: str, *words: str) -> Iterator[tuple[int, int]]:
    """Port and process of a script of this folder that serves. `{port}` in its arguments is replaced."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    path = str(Path(__file__).resolve().with_name(script))
    process = subprocess.Popen([sys.executable, path, *(word.format(port=port) for word in words)])
    try:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"{script} did not start to serve")
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def started(rate: float) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """Port and process of a server that sends `rate` frames per second."""
    return listening("sends.py", "{port}", str(rate))


def main() -> None:
    """Serve."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("rate", type=float, help="tokens per second, of all streams together")
    a = parser.parse_args()
    uvloop.run(serve(a.port, a.rate))


if __name__ == "__main__":
    main()
