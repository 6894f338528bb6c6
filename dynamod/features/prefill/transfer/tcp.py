"""Over TCP, between nodes: the bytes of a piece follow its frame."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from .base import Listening
from .reading import ReaderEnd
from .sending import SourceEnd


class Tcp:
    """A backend. The address is `host:port`, that of an IPv6 host `[host]:port`."""

    async def listen(
        self, source: Callable[[type[SourceEnd]], SourceEnd], host: str, folder: Path | None, port: int
    ) -> Listening:
        """Listen at `host`, where port 0 is a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: source(SourceEnd), host, port)
        port = server.sockets[0].getsockname()[1]
        return Listening(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", server.close)

    async def connect(self, address: str, reader: Callable[[type[ReaderEnd]], ReaderEnd]) -> ReaderEnd:
        """Connect. Raises OSError."""
        host, _, port = address.rpartition(":")
        if not (port.isdecimal() and int(port) < 2**16):
            raise OSError(f"{address!r} is no address of a host and a port")
        loop = asyncio.get_running_loop()
        _, end = await loop.create_connection(lambda: reader(ReaderEnd), host.strip("[]"), int(port))
        return end
