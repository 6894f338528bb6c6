"""Inside a node: frames over a unix socket, the bytes of pieces through memory that both processes map.

The memory has no name: the source passes a descriptor with the first byte of the connection, so nothing is left when a
process is killed.
"""

import asyncio
import contextlib
import fcntl
import mmap
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from .base import Listening
from .frames import PIECE, WINDOW, FrameError
from .reading import ReaderEnd
from .ring import Ring
from .sending import SourceEnd


class _Shared(Ring):
    """A ring that both processes map."""

    def __init__(self, descriptor: int, protection: int) -> None:
        self._map = mmap.mmap(descriptor, WINDOW, mmap.MAP_SHARED, protection)
        super().__init__(memoryview(self._map))

    def close(self) -> None:
        """Give the memory back."""
        self._memory.release()
        self._map.close()


class ShmSource(SourceEnd):
    """The source's end. A connection that it cannot give memory to ends at once, and the reader takes another way."""

    _ring: _Shared | None = None

    def opened(self) -> None:
        """Pass the memory on."""
        super().opened()
        try:
            self._ring = self._pass_on()
        except OSError:
            self.abort()

    def _pass_on(self) -> _Shared:
        assert self.transport is not None
        descriptor = os.memfd_create("dynamod-blocks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, WINDOW)
            # Memory that becomes smaller would kill the reader.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            own = os.dup(self.transport.get_extra_info("socket").fileno())  # event loops show no sendmsg
            with socket.socket(fileno=own) as connection:
                socket.send_fds(connection, [b"\0"], [descriptor])
            return _Shared(descriptor, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(descriptor)

    def room(self) -> int:
        """Bytes of the next piece."""
        return min(PIECE, self._ring.room()) if self._ring is not None else 0

    def carry(self, frame: bytes, data: memoryview) -> None:
        """Lay the bytes down, then say so."""
        if self._ring is not None and self.transport is not None:
            self._ring.write(data)
            self.transport.write(frame)

    def lost(self) -> None:
        """Give the memory back."""
        super().lost()
        if self._ring is not None:
            self._ring.close()
            self._ring = None


class ShmReader(ReaderEnd):
    """The reader's end. `ring` is set before the connection is made."""

    ring: _Shared | None = None

    def fetch(self, place: memoryview) -> None:
        """Copy the bytes of a piece."""
        if self.ring is None or len(place) > self.ring.room():
            raise FrameError("a piece goes beyond the shared memory")
        self.ring.read(place)
        self.filled(len(place))

    def lost(self) -> None:
        """Give the memory back."""
        super().lost()
        if self.ring is not None:
            self.ring.close()
            self.ring = None


class Shm:
    """A backend. The address is the path of a socket, whose name is used once: it is there on one machine only."""

    async def listen(
        self, source: Callable[[type[SourceEnd]], SourceEnd], host: str, folder: Path | None, port: int
    ) -> Listening | None:
        """Listen in `folder`; None without one, and on a system without memory that has no name. Raises OSError."""
        if folder is None or not hasattr(os, "memfd_create"):
            return None
        path = folder / f"kv-{secrets.token_hex(6)}.sock"
        listener = _bound(path)
        try:
            server = await asyncio.get_running_loop().create_unix_server(lambda: source(ShmSource), sock=listener)
        except BaseException:
            listener.close()
            path.unlink(missing_ok=True)
            raise

        def close() -> None:
            server.close()
            path.unlink(missing_ok=True)

        return Listening(str(path), close)

    async def connect(self, address: str, reader: Callable[[type[ReaderEnd]], ReaderEnd]) -> ReaderEnd:
        """Connect and map the memory. Raises OSError, also for a socket that is on another machine."""
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            await loop.sock_connect(connection, address)
            ring = await _taken_over(connection)
            undo.callback(ring.close)
            end = reader(ShmReader)
            assert isinstance(end, ShmReader)
            end.ring = ring
            await loop.create_unix_connection(lambda: end, sock=connection)
            undo.pop_all()
            return end


def _bound(path: Path) -> socket.socket:
    """A socket for processes of the same user. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX)
    old = os.umask(0o177)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old)
    listener.setblocking(False)
    return listener


async def _taken_over(connection: socket.socket) -> _Shared:
    """The memory that the source passes with its first byte. Raises OSError."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    first, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        if first != b"\0" or len(descriptors) != 1 or os.fstat(descriptors[0]).st_size != WINDOW:
            raise OSError("the source has passed no memory")
        return _Shared(descriptors[0], mmap.PROT_READ)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
