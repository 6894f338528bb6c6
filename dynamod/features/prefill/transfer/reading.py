"""The reader's end of a connection: assembles blocks, checks them, and gives credit as they are taken."""

import asyncio
import contextlib
import io
from collections import deque
from typing import get_args

from .base import Block, Kind, TransferError
from .frames import WINDOW, Accept, Credit, Done, End, Failed, Frame, FrameError, Head, Hello, Idle, Piece, checksum
from .link import Link

_GRANT = WINDOW // 4
"""Bytes that are credited together."""


_BUFFER = 128 * 1024

_CLOSING = 1.0
"""Seconds in which a connection that is broken off is closed."""

_TICKS = 5
"""The longest silence is counted in so many ticks of the own loop, so a pause of this process is not the source's."""


class _Assembly:
    """A block whose bytes come."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.missing = head.size
        # The bytes of the block are written where they stay: BytesIO hands its own out. They take no memory before.
        self._file = io.BytesIO(bytes(head.size))
        self._view = self._file.getbuffer()

    def place(self, size: int) -> memoryview:
        """Where the next `size` bytes belong."""
        start = self.head.size - self.missing
        return self._view[start : start + size]

    def block(self) -> Block:
        """The block. Raises FrameError when it is not what the source had."""
        self._view.release()
        data = self._file.getvalue()
        if checksum(self.head.name, data) != self.head.checksum:
            raise FrameError("the checksum of a block is wrong")
        return Block(self.head.name, data)


class ReaderEnd(Link):
    """Says `hello`, and then takes blocks from index `hello.first` on."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(_BUFFER)
        self._hello = hello
        self._accepted = self._complete = False
        self._error: TransferError | None = None
        self._assembly: _Assembly | None = None
        self._blocks: deque[Block] = deque()
        self._count = 0  # of blocks that came
        self._waiting = 0  # bytes of the blocks that nobody has taken
        self._owed = 0  # bytes that came and are not credited
        self._wake: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()  # the connection
        self._taken = hello.first  # the number of the next block to take
        self._told = hello.first  # the value of `_taken` that the source was sent last
        self._asked = False  # by the source, and not answered
        self._reads = 0  # of the socket

    # For the reader.

    async def accepted(self, stall: float) -> None:
        """Wait for the source's answer. Raises TransferError: its refusal, or unreachable, or stalled."""
        while not self._accepted and self._error is None:
            await self._news(stall)
        if self._error is not None and not self._accepted:
            raise self._error

    async def next(self, stall: float) -> Block | None:
        """The next block, None after the last one. Raises TransferError; the blocks before the fault come first."""
        while not self._blocks:
            if self._complete:
                return None
            if self._error is not None:
                raise self._error
            await self._news(stall)
        block = self._blocks.popleft()
        self._waiting -= len(block.data)
        self._taken += 1
        self._grant()
        if self._asked:
            self._answer()
        return block

    async def leave(self) -> None:
        """Break off, unless everything is here. The source sees it before it sees the next connection."""
        if not self._complete:
            self.abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await self._gone.wait()

    # For subclasses: where the bytes of a piece are.

    def fetch(self, place: memoryview) -> None:
        """Bring the bytes of a piece to their place, and call `filled` then: they follow on the connection."""
        self.expect(place)

    # Called by the connection.

    def opened(self) -> None:
        """Ask for the session."""
        self.send(self._hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Remember that the source lives: a large piece may take longer than the longest silence."""
        self._reads += 1
        return super().get_buffer(sizehint)

    def received(self, frame: Frame) -> None:
        """What the source says."""
        match frame:
            case Failed(kind, why):
                self._fail(TransferError(_kind(kind), why))
            case Accept() if not self._accepted:
                self._accepted = True
                self._notify()
            case _ if not self._accepted:
                raise FrameError(f"{type(frame).__name__} before Accept")
            case Idle():
                self._asked = True
                if self._taken > self._told or not self._blocks:
                    self._answer()
            case Head() if self._assembly is None:
                self._assembly = _Assembly(frame)
                self._finish_block(self._assembly)
            case Piece(size) if self._assembly is not None and size <= self._assembly.missing:
                if self._owed + size > WINDOW:
                    raise FrameError("the source sends more than it may")
                self.fetch(self._assembly.place(size))
            case End(count) if self._assembly is None:
                self._all(count)
            case _:
                raise FrameError(f"{type(frame).__name__} is not expected")

    def filled(self, size: int) -> None:
        """A piece is where it belongs."""
        self._owed += size
        if self._assembly is not None:
            self._assembly.missing -= size
            self._finish_block(self._assembly)
        self._grant()

    def damaged(self, why: str) -> None:
        """The stream is useless from here on."""
        self._fail(TransferError("damaged", f"the source's blocks came damaged: {why}"))

    def lost(self) -> None:
        """The source has gone, unless all is here."""
        self._gone.set()
        self._assembly = None  # the garbage collector of Python 3.13 cannot free it as part of a cycle
        if not self._accepted:
            self._fail(TransferError("unreachable", "the source has closed the connection at once"))
        else:
            self._fail(TransferError("short", f"the connection ended after {self._count} blocks, before the last one"))

    def _finish_block(self, assembly: _Assembly) -> None:
        if not assembly.missing:
            self._assembly = None
            block = assembly.block()
            self._blocks.append(block)
            self._count += 1
            self._waiting += len(block.data)
            self._notify()

    def _all(self, count: int) -> None:
        # A reader that had more blocks than there are has nothing to get.
        if count == self._hello.first + self._count or (not self._count and count < self._hello.first):
            self.send(Done())
            self._complete = True
            self.close()
            self._notify()
        else:
            why = f"{self._count} blocks came, but the source has sent {count - self._hello.first}"
            self._fail(TransferError("short", why))

    def _fail(self, error: TransferError) -> None:
        if self._error is None and not self._complete:
            self._error = error
            self.abort()
            self._notify()

    def _grant(self) -> None:
        """Credit what came, unless much of it waits to be taken."""
        if self._owed >= _GRANT and self._waiting < WINDOW:
            owed, self._owed = self._owed, 0
            self._told = self._taken
            self.send(Credit(owed, self._taken))

    def _answer(self) -> None:
        """Show the source that blocks are taken, or awaited: then it is told again of the next one."""
        self._asked, self._told = self._taken == self._told, self._taken
        self.send(Idle(self._taken))

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _news(self, stall: float) -> None:
        """Wait until something has happened. When nothing comes for `stall` seconds, that is an error."""
        self._wake = asyncio.get_running_loop().create_future()
        quiet, reads = 0, self._reads
        while not self._wake.done():
            if quiet == _TICKS:
                self._fail(TransferError("stalled", f"the source has sent nothing for {stall:g} s"))
                return
            await asyncio.wait([self._wake], timeout=stall / _TICKS)
            quiet, reads = (quiet + 1 if reads == self._reads else 0), self._reads


def _kind(text: str) -> Kind:
    kinds: tuple[Kind, ...] = get_args(Kind)
    return next((kind for kind in kinds if kind == text), "failed")
