"""Streams: ordered items with offsets, for what is too many and too small to be messages (tokens above all).

A writer pushes runs of items with the offset of their first. What is already there is dropped, a hole is an error.
A slow reader gets everything that piled up in one piece; nothing is lost and no other reader waits.
"""

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from .errors import StreamGap

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


class Stream(Generic[T]):
    """One writer, one reader."""

    def __init__(self) -> None:
        self._waiting: list[T] = []
        self._received = 0
        self._ended = False
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None

    def push(self, offset: int, items: Sequence[T]) -> None:
        """Add items; after the end they are dropped. Raises StreamGap for a hole."""
        if self._ended:
            return
        skip = unseen(self._received, offset, len(items))
        new = items[skip:] if skip else items
        if new:
            self._waiting.extend(new)
            self._received += len(new)
            self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, with an error that the reader gets after the items before it; a second end is ignored."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake()

    async def read(self) -> list[T]:
        """Everything that waits, at least one item; an empty list at the end. Raises the error given to `end`."""
        while not self._waiting and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        items, self._waiting = self._waiting, []
        if not items and self._error is not None:
            raise self._error
        return items

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
