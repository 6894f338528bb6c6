"""The transport inside a process: the request goes to the endpoint's receiver by reference, deltas to the sink."""

from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta
from dynamod.message.worker import Request

from .base import Outbound, Receive, Reply, Sink
from .inbox import ends


class _LocalStream:
    """Stands where an outbox would: passes each delta to the sink in the same call."""

    def __init__(self, sink: Sink, origin: object) -> None:
        self._sink: Sink | None = sink
        self.origin = origin
        self.reply = Reply(self, 0)
        self.streams = {0: self.reply}

    def add(self, delta: Delta) -> None:
        if self._sink is not None:
            sink = self._sink
            if ends(delta):
                self._sink = None
            sink.delta(delta)

    def backlog(self, stream: int) -> int:
        return 0

    def cancel(self) -> None:
        self._sink = None
        self.reply.cancel()

    def confirm(self) -> None:
        self.reply.confirm()


class LocalTransport:
    """`receive` is the same function that an `UnixServer` of this process would call."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance. Failure is reported by `sink.lost`."""
        stream = _LocalStream(sink, self)
        self._receive(instance.path, request, stream.reply)
        return stream
