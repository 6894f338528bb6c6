"""Streams: ordered items with offsets, for what is too many and too small to be messages (tokens above all).

A writer pushes runs of items with the offset of their first. What is already there is dropped, a hole is an error.
A slow reader gets everything that piled up in one piece; nothing is lost and nobody else waits.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from .errors import StreamClosed, StreamGap
from .statistics import Total

T = TypeVar("T")


def unseen(expected: int, offset: int, count: int) -> int:
    """How many of `count` items at `offset` a reader that holds `expected` items must skip; `count` when all.

    Raises StreamGap when items between `expected` and `offset` are missing.
    """
    if offset == expected:
        return 0
    if offset > expected:
        raise StreamGap(f"items {expected} to {offset - 1} are missing")
    return min(expected - offset, count)


class StreamStatistics(msgspec.Struct, frozen=True):
    """Items received, items read, items waiting, pieces that were merged for a slow reader, duplicates dropped."""

    received: Total
    read: int
    waiting: int
    merged: Total
    duplicates: Total
    ended: bool


class Stream(Generic[T]):
    """One writer, one reader. `limit` bounds the items of the whole stream (the response it carries)."""

    def __init__(self, *, limit: int | None = None) -> None:
        self._limit = limit
        self._waiting: list[T] = []
        self._received = self._read = self._merged = self._duplicates = 0
        self._ended = False
        self._error: BaseException | None = None
        self._finish: Any = None
        self._reader: asyncio.Future[None] | None = None

    def push(self, offset: int, items: Sequence[T]) -> None:
        """Add items. Raises StreamGap for a hole, StreamClosed after the end, OverflowError past the limit."""
        if self._ended:
            raise StreamClosed("the stream has ended")
        skip = unseen(self._received, offset, len(items))
        self._duplicates += skip
        new = items[skip:] if skip else items
        if self._limit is not None and self._received + len(new) > self._limit:
            raise OverflowError(f"the stream is bounded to {self._limit} items")
        if new:
            if self._waiting:
                self._merged += 1
            self._waiting.extend(new)
            self._received += len(new)
            self._wake()

    def end(self, finish: Any = None) -> None:
        """End the stream; a second end is ignored. `finish` is what `finish` gives the reader."""
        if not self._ended:
            self._ended, self._finish = True, finish
            self._wake()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error that the reader gets after the items before it."""
        if not self._ended:
            self._error = error
            self.end()

    def cancel(self) -> None:
        """The reader leaves: what waits is dropped, and a further push raises StreamClosed."""
        if not self._ended:
            self._ended = True
            self._waiting.clear()
            self._wake()

    @property
    def finish(self) -> Any:
        """What the writer gave to `end`; None before."""
        return self._finish

    @property
    def ended(self) -> bool:
        """Whether the writer or the reader has ended the stream."""
        return self._ended

    async def read(self) -> list[T]:
        """Everything that waits, at least one item; an empty list at the end. Raises the error given to `fail`."""
        while not self._waiting and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._waiting:
            items, self._waiting = self._waiting, []
            self._read += len(items)
            return items
        if self._error is not None:
            raise self._error
        return []

    async def __aiter__(self) -> AsyncIterator[T]:
        try:
            while items := await self.read():
                for item in items:
                    yield item
        finally:
            self.cancel()

    def statistics(self) -> StreamStatistics:
        """A snapshot of the stream."""
        return StreamStatistics(
            self._received, self._read, len(self._waiting), self._merged, self._duplicates, self._ended
        )

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
