"""A source with its server, a source that follows a script, and blocks."""

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from dynamod.features.prefill.transfer.base import Block, TransferError
from dynamod.features.prefill.transfer.frames import VERSION, Accept, Frame, Head, Hello, Piece, checksum, pack
from dynamod.features.prefill.transfer.reader import read
from dynamod.features.prefill.transfer.server import BlockServer
from dynamod.features.prefill.transfer.sessions import Session, Sessions
from dynamod.transport.tls import PeerTls
from tests.certificates import Certificates

LAYOUT = "layout"
INSTALLED = [name for name in ("shm", "nixl", "tcp", "tls") if name != "nixl" or importlib.util.find_spec("nixl")]
Broken = tuple[list[Block], TransferError]
each_backend = pytest.mark.parametrize("backend", INSTALLED)


async def by_all_backends(play: Callable[[str], Awaitable[None]]) -> None:
    """Try each backend at the same time, where a test mostly waits. All that failed are reported, by their name."""
    ended = await asyncio.gather(*map(play, INSTALLED), return_exceptions=True)
    failed = [(name, error) for name, error in zip(INSTALLED, ended, strict=True) if error is not None]
    for name, error in failed:
        error.add_note(f"backend {name}")
    if failed:
        raise BaseExceptionGroup("backends failed", [error for _, error in failed])


@functools.cache
def peer_tls() -> PeerTls:
    """Certificates of a node."""
    made = Certificates(Path(tempfile.mkdtemp(prefix="dynamod-tls-")))
    atexit.register(shutil.rmtree, made.folder, ignore_errors=True)
    return tls_of(made)


def tls_of(made: Certificates, **options: Any) -> PeerTls:
    """The files of a node with a certificate of this authority."""
    cert, key = made.issue("node", **options)
    return PeerTls(Path(made.ca), Path(cert), Path(key))


class Source:
    """Sessions and their server, in this process."""

    def __init__(
        self, folder: Path | None, host: str = "127.0.0.1", port: int = 0, tls: PeerTls | None = None, **options: Any
    ) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.exports: list[asyncio.Task[None]] = []
        self.sessions = Sessions(asyncio.get_running_loop().time, self.spawn, LAYOUT, **options)
        self.server = BlockServer(self.sessions, self.spawn, folder)
        self.secure = BlockServer(self.sessions, self.spawn, None, tls=tls or peer_tls())
        self.host, self.port = host, port

    @property
    def addresses(self) -> dict[str, str]:
        """Of both servers, by backend."""
        return {**self.server.addresses, **self.secure.addresses}

    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task

    async def __aenter__(self) -> Self:
        await self.server.start(self.host, self.port)
        await self.secure.start(self.host)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sessions.close()
        self.server.close()
        self.secure.close()
        for export in self.exports:
            export.cancel()
        await asyncio.wait([*self.tasks, *self.exports])
        await asyncio.sleep(0.01)

    def filled(self, blocks: list[Block]) -> Session:
        """A session that has all of them."""
        session = self.sessions.open()
        for block in blocks:
            session.put(block.name, block.data)
        session.finish()
        return session

    def export(self, session: Session, blocks: list[Block]) -> None:
        """Put blocks as an engine does: each when there is room."""
        self.exports.append(asyncio.get_running_loop().create_task(self._export(session, blocks)))

    async def _export(self, session: Session, blocks: list[Block]) -> None:
        for block in blocks:
            room = asyncio.Event()
            if not session.room(len(block.data), room.set):
                await room.wait()
            await asyncio.sleep(0.001)  # it is exported
            session.put(block.name, block.data)
        session.finish()

    def reading(self, backend: str, session: str, first: int = 0, **options: Any) -> AsyncGenerator[Block, None]:
        if backend == "tls":
            options.setdefault("tls", peer_tls())
        return read({backend: self.addresses[backend]}, session, options.pop("layout", LAYOUT), first, **options)


def some_blocks(count: int, size: int = 5000) -> list[Block]:
    return [Block(2**64 - 1 - index, bytes([index % 256]) * size) for index in range(count)]


async def collect(blocks: AsyncIterator[Block]) -> list[Block]:
    return [block async for block in blocks]


async def broken(reading: AsyncIterator[Block], at: Callable[[int], object] = lambda count: None) -> Broken:
    """What comes before the error, and the error. `at` is called with the count of blocks so far."""
    got: list[Block] = []
    try:
        async for block in reading:
            got.append(block)
            at(len(got))
    except TransferError as error:
        return got, error
    pytest.fail("all blocks came")


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def framed(block: Block, *, named: int | None = None, data: bytes | None = None) -> bytes:
    """A block on the wire; with another name or other bytes than its checksum says."""
    sent = block.data if data is None else data
    head = Head(block.name if named is None else named, len(sent), checksum(block.name, block.data))
    return pack(head) + (pack(Piece(len(sent))) + sent if sent else b"")


@contextlib.asynccontextmanager
async def scripted(*script: Frame | bytes, accept: bool = True, stay: bool = True) -> AsyncIterator[str]:
    """The TCP address of a source that sends this, whoever asks, and then stays silent or leaves."""
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(pack(Hello(VERSION, "session", LAYOUT, 0))))
        for part in ([Accept()] if accept else []) + list(script):
            writer.write(part if isinstance(part, bytes) else pack(part))
        if stay:
            await left.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        left.set()
        server.close()
        await asyncio.sleep(0.01)


def asked(address: str, first: int = 0, stall: float = 5.0) -> AsyncGenerator[Block, None]:
    """Read from a scripted source."""
    return read({"tcp": address}, "session", LAYOUT, first, stall=stall)
