"""The post inside a process: the request goes to the endpoint's receiver by reference, deltas straight to the sink."""

from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta
from dynamod.message.worker import Request

from .base import Outbound, Receive, Sink
from .inbox import ends
from .outbox import StreamReply


class _Direct:
    """Stands where an outbox would: passes each delta to the sink in the same call."""

    def __init__(self, sink: Sink, origin: object) -> None:
        self._sink: Sink | None = sink
        self.origin = origin
        self.streams: dict[int, StreamReply] = {}

    def add(self, delta: Delta) -> None:
        if self._sink is not None:
            sink = self._sink
            if ends(delta):
                self._sink = None
            sink.delta(delta)

    def backlog(self, stream: int) -> int:
        return 0

    def leave(self) -> None:
        self._sink = None


class _LocalStream:
    def __init__(self, direct: _Direct, reply: StreamReply) -> None:
        self._direct, self._reply = direct, reply

    def cancel(self) -> None:
        """Tell the worker that the reader has left; the sink is called no more."""
        self._direct.leave()
        self._reply.cancel()


class LocalTransport:
    """`receive` is the same function that an `UnixServer` of this process would call."""

    name = "local"

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance. Failure is told to `sink.lost`."""
        direct = _Direct(sink, self)
        reply = StreamReply(direct, 0)
        direct.streams[0] = reply
        self._receive(instance.path, request, reply)
        return _LocalStream(direct, reply)

    async def close(self) -> None:
        """Close all connections."""
