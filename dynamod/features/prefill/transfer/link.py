"""One end of a connection: frames, and the bytes of pieces, which are read straight to where they belong."""

import asyncio
from abc import ABC, abstractmethod
from typing import cast

from .frames import FRAME_LIMIT, Frame, FrameError, pack, unpack

FIRST_BUFFER = 1024
"""Bytes of the buffer before the first frame: a connection that says nothing costs no more."""
DIRECT = 64 * 1024
"""From so many bytes on, a read straight into the block is cheaper than a copy."""


class Link(asyncio.BufferedProtocol, ABC):
    """What the ends of reader and source share. A subclass says what is done with frames, in `opened` ... `lost`.

    `buffer`: bytes that are read at once where they are not read straight to their place; twice FRAME_LIMIT at least.
    """

    def __init__(self, buffer: int) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False  # by us: what still comes is not looked at
        self._size = buffer
        self._buffer = memoryview(bytearray(FIRST_BUFFER))
        self._start = self._stop = 0  # what is in the buffer and not looked at
        self._target: memoryview | None = None  # of the piece that comes now
        self._filled = 0
        self._direct = False
        self._held = False  # nothing is looked at until `resume`
        self._framed = False  # a frame has come

    # For subclasses.

    def opened(self) -> None:
        """The connection is made."""

    @abstractmethod
    def received(self, frame: Frame) -> None:
        """One frame. Raises FrameError when it is out of place."""

    def filled(self, size: int) -> None:
        """The piece that `expect` has announced is there, `size` bytes."""

    @abstractmethod
    def damaged(self, why: str) -> None:
        """What came are no frames of ours, or none that fit here: end the connection."""

    def lost(self) -> None:
        """The connection has ended. Called once."""

    def expect(self, target: memoryview) -> None:
        """The next bytes are no frames, and belong into `target`, which is not empty."""
        self._target, self._filled = target, 0

    def hold(self) -> None:
        """Look at nothing more until `resume`: the bytes of a piece come another way."""
        self._held = True

    def resume(self, place: memoryview) -> None:
        """Continue: the bytes are where they belong."""
        self._held = False
        self._target, self._filled = place, len(place)
        self._look()
        if self.transport is not None and not (self._held or self.closed):
            self.transport.resume_reading()

    def send(self, frame: Frame) -> None:
        """Send a frame; dropped when the connection has ended."""
        if self.transport is not None and not self.closed:
            self.transport.write(pack(frame))

    def close(self) -> None:
        """End the connection once what was sent has left."""
        self.closed = True
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to talk."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        self.opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: into the block where many are missing, else into the buffer."""
        target = self._target
        self._direct = target is not None and self._start == self._stop and len(target) - self._filled >= DIRECT
        if self._direct and target is not None:
            return target[self._filled :]
        small = len(self._buffer) < self._size
        if self._start == self._stop:
            self._start = self._stop = 0
            if small and self._framed:
                self._buffer = memoryview(bytearray(self._size))
        elif small or len(self._buffer) - self._stop <= FRAME_LIMIT:  # what is left over is the start of a frame
            rest = bytes(self._buffer[self._start : self._stop])
            if small and (self._framed or 2 * len(rest) > len(self._buffer)):
                self._buffer = memoryview(bytearray(self._size))
            self._buffer[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)
        return self._buffer[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has come."""
        if self._direct:
            self._filled += nbytes
        else:
            self._stop += nbytes
        self._look()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The other end is gone, or we are."""
        self.closed = True
        self.transport = None
        self._target = None
        self.lost()

    def _look(self) -> None:
        """Take all that is complete."""
        try:
            while not (self.closed or self._held) and self._step():
                pass
        except FrameError as error:
            self.damaged(str(error))
        if self.closed:
            self._start = self._stop = 0
        elif self._held and self._stop - self._start > self._size // 2 and self.transport is not None:
            self.transport.pause_reading()  # not before: a connection that is paused does not see its end

    def _step(self) -> bool:
        """Take one frame or the rest of a piece out of the buffer; False: more bytes are needed."""
        if self._target is not None:
            size = min(len(self._target) - self._filled, self._stop - self._start)
            self._target[self._filled : self._filled + size] = self._buffer[self._start : self._start + size]
            self._start += size
            self._filled += size
            if self._filled < len(self._target):
                return False
            self._target = None
            self.filled(self._filled)
            return True
        found = unpack(self._buffer[self._start : self._stop])
        if found is None:
            return False
        frame, size = found
        self._start += size
        self._framed = True
        self.received(frame)
        return True
