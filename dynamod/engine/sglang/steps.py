"""SGLang's own ForwardPassMetrics: read while there are subscribers of steps."""

import asyncio
import logging
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from dynamod.message.kv_events import ForwardPass, QueuedRequests, ScheduledRequests

from ..adapter.engine import AdapterEngine

log = logging.getLogger("dynamod.engine")

LOOK_INTERVAL = 0.25
"""Seconds between two looks at what has been published."""

NEWEST = 4
"""Steps of a rank that are described at a look."""


class _Published(msgspec.Struct):
    """As SGLang has it; its numbers have the names of ours."""

    counter_id: int
    wall_time: float
    scheduled_requests: dict[str, int | float]
    queued_requests: dict[str, int | float]


_decode = msgspec.msgpack.Decoder(_Published).decode


class StepReader:
    """`forward_pass(rank)` is the last step of a rank that has been read. `endpoint`: of rank 0 without its number."""

    def __init__(self, engine: AdapterEngine, endpoint: str, ranks: int) -> None:
        self._engine, self._endpoint, self._ranks = engine, endpoint, ranks
        self._last: dict[int, ForwardPass] = {}

    def forward_pass(self, rank: int) -> ForwardPass | None:
        """None while nothing is read."""
        return self._last.get(rank)

    async def run(self) -> None:
        """Look forever; connected only while there is a subscriber."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            if self._engine.stepped is not None:
                await self._read()

    async def _read(self) -> None:
        import zmq  # comes with the engine

        with ExitStack() as stack:
            context = stack.enter_context(zmq.Context())
            sockets = []
            for rank in range(self._ranks):
                sockets.append(stack.enter_context(context.socket(zmq.SUB)))
                sockets[rank].setsockopt(zmq.LINGER, 0)
                sockets[rank].subscribe(b"")
                sockets[rank].connect(f"{self._endpoint}.{rank}")
            while self._engine.stepped is not None:
                for rank, socket in enumerate(sockets):
                    found: deque[bytes] = deque(maxlen=NEWEST)
                    with suppress(zmq.Again):
                        while True:
                            found.append(socket.recv_multipart(zmq.NOBLOCK)[-1])
                    for payload in found:
                        self._take(rank, payload)
                await asyncio.sleep(LOOK_INTERVAL)
        self._last.clear()

    def _take(self, rank: int, payload: bytes) -> None:
        try:
            found = _decode(payload)
        except msgspec.MsgspecError as error:
            log.warning("a step of SGLang cannot be read: %s", error)
            return
        scheduled = ScheduledRequests(**_known(found.scheduled_requests, ScheduledRequests))
        queued = QueuedRequests(**_known(found.queued_requests, QueuedRequests))
        self._last[rank] = ForwardPass(found.counter_id, found.wall_time, scheduled, queued, rank)
        if found.wall_time and self._engine.stepped is not None:
            self._engine.stepped(rank)


def _known(numbers: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Without what it may add later."""
    return {name: numbers[name] for name in kind.__struct_fields__ if name in numbers}
