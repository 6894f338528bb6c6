"""Listens to the KV events of one rank of an engine over ZMQ, and asks for lost events again."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .wire import Event, events

log = logging.getLogger("dynamod.engine")

REPLAY = 2.0
"""Seconds for the next message of a replay: publishers look for requests ten times a second."""


class Subscription:
    """`take` gets the events in order. `lost` is called when some are lost for good: what the cache holds is not known.

    Messages are numbered from 0. One that comes again is dropped. Where some are missing the publisher is asked to
    repeat them at `replay` (None: it cannot), which it can as long as they are in its buffer.
    """

    def __init__(
        self, endpoint: str, replay: str | None, take: Callable[[Event], None], lost: Callable[[], None]
    ) -> None:
        self._endpoint, self._replay, self._take, self._lost = endpoint, replay, take, lost
        self.expected = 0
        self.gaps = self.losses = 0

    async def run(self) -> None:
        """Listen until cancelled. The engine may publish already: the first message asks for all before it."""
        import zmq.asyncio  # comes with the engine

        context = zmq.asyncio.Context()
        try:
            socket = context.socket(zmq.SUB)
            socket.set_hwm(0)  # what waits is bounded by the engine's cache, and a loss costs more
            socket.subscribe(b"")
            socket.connect(self._endpoint)
            if self._replay is not None:
                await self._fill(context, None)
            while True:
                await self._message(context, await socket.recv_multipart())
        finally:
            context.destroy(linger=0)

    async def _message(self, context: Any, frames: Sequence[bytes]) -> None:
        number = int.from_bytes(frames[-2], "big") if len(frames) >= 2 else -1
        if number > self.expected:
            self.gaps += 1
            await self._fill(context, number)
        if number >= self.expected:
            self._apply(number, frames[-1])

    async def _fill(self, context: Any, until: int | None) -> None:
        """Have everything repeated from the expected number on; None: whatever there is."""
        if self._replay is not None:
            with contextlib.suppress(TimeoutError):
                await self._repeated(context, self._replay)
        if until is not None and self.expected < until:
            self.losses += 1
            log.warning("KV events %d to %d of the engine are lost", self.expected, until - 1)
            self._lost()
            self.expected = until

    async def _repeated(self, context: Any, endpoint: str) -> None:
        import zmq

        socket = context.socket(zmq.DEALER)
        try:
            socket.connect(endpoint)
            await socket.send_multipart([b"", self.expected.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(REPLAY):
                    frames = await socket.recv_multipart()
                number = int.from_bytes(frames[-2], "big", signed=True)
                if number < 0:  # that was all
                    return
                if number > self.expected:
                    return  # its buffer begins later
                if number == self.expected:
                    self._apply(number, frames[-1])
        finally:
            socket.close(linger=0)

    def _apply(self, number: int, payload: bytes) -> None:
        self.expected = number + 1
        try:
            found = events(payload)
        except msgspec.DecodeError as error:
            self.losses += 1
            log.warning("KV events of the engine cannot be read: %s", error)
            self._lost()
            return
        for event in found:
            self._take(event)
