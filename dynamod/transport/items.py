"""A stream of items for a reader that awaits them, instead of being called for each."""

from typing import Any

from dynamod.actor import Stream, StreamGap
from dynamod.message.errors import EngineFailed
from dynamod.message.ingress import Delta, Failed, Items

from .base import Sink


class ItemStream(Stream[Any], Sink):
    """The items of one stream, each once and in order. Deltas of other kinds pass.

    `read` raises the error with which the stream ended; a lost connection or a lost item is EngineFailed.
    """

    def delta(self, delta: Delta) -> None:
        """Take what the other side sends."""
        if isinstance(delta, Items):
            try:
                self.push(delta.offset, delta.items)
            except StreamGap as error:
                self.lost(str(error))
            if delta.finish is not None:
                self.end()
        elif isinstance(delta, Failed):
            self.end(delta.exception())

    def lost(self, why: str) -> None:
        """Nothing more comes, and there should have been more."""
        self.end(EngineFailed(why))
