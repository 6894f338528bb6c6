"""A stream of items for whoever awaits them, instead of being called for each."""

from typing import Any

from dynamod.actor import Stream, StreamGap
from dynamod.message.errors import EngineFailed
from dynamod.message.ingress import Delta, Failed, Items

from .base import Sink


class ItemStream(Sink):
    """The items of one stream, each once and in order. Deltas of other kinds pass."""

    def __init__(self) -> None:
        self._stream: Stream[Any] = Stream()

    async def read(self) -> list[Any]:
        """All items that have come and were not read, at least one; none at the end.

        Raises the error with which the stream ended; a lost connection or a lost item is EngineFailed.
        """
        return await self._stream.read()

    def delta(self, delta: Delta) -> None:
        """Take what the other side sends."""
        if self._stream.ended:
            return
        if isinstance(delta, Items):
            try:
                self._stream.push(delta.offset, delta.items)
            except StreamGap as error:
                self.lost(str(error))
            if delta.finish is not None:
                self._stream.end()
        elif isinstance(delta, Failed):
            self._stream.fail(delta.exception())

    def end(self) -> None:
        """Nothing more is wanted; what has come can be read."""
        self._stream.end()

    def lost(self, why: str) -> None:
        """Nothing more comes, and there should have been more."""
        self._stream.fail(EngineFailed(why))
