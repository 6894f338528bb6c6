"""The two ends of a connection of frames between an ingress process and a worker process, over any kind of socket."""

import asyncio
import logging
from collections.abc import Callable

from .base import Receive
from .framing import FramedProtocol
from .inbox import Inbox
from .outbox import Outbox
from .signing import RequestSigning

log = logging.getLogger("dynamod.transport")


class WorkerEnd(FramedProtocol):
    """A worker's end of a connection to one ingress process: its requests, cancels and credits."""

    def __init__(self, receive: Receive, connections: "set[WorkerEnd]", signing: RequestSigning | None = None) -> None:
        super().__init__(lambda payload: self.outbox.take(payload, receive), self._over)
        self._connections = connections
        self.outbox = Outbox(self.write, signing)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """An ingress process has connected."""
        self._connections.add(self)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        """The socket is full: deltas wait, merged."""
        self.outbox.block(True)

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self.outbox.block(False)

    def _over(self, why: str) -> None:
        if self.fault:
            log.warning("closed a connection: %s", self.fault)
        self._connections.discard(self)
        self.outbox.close()


class IngressEnd(FramedProtocol):
    """An ingress's end of a connection to one worker process. At its end all open sinks are lost.

    `unanswered`: what the log says where the worker closes the connection before its greeting; empty: nothing.
    """

    LOST = "connection to the worker lost"

    def __init__(
        self, ended: Callable[[], object], signing: RequestSigning | None = None, unanswered: str = ""
    ) -> None:
        self._unanswered = unanswered
        self.inbox = Inbox(self.write_soon, signing)
        super().__init__(self.inbox.frame, self._over)
        self._forget = ended
        self._link = False  # only the connection has failed, see Sink.link_lost

    def connection_lost(self, exc: BaseException | None) -> None:
        """The worker has closed the connection, or the network between has stopped: then it may live."""
        self._link = isinstance(exc, OSError) and not isinstance(exc, ConnectionError)
        super().connection_lost(exc)
        if self._unanswered and not self.greeted:
            log.warning("%s", self._unanswered)

    def unreached(self, why: str) -> None:
        """The connection was not made; the worker may live."""
        self._link = True
        self.fail(why)

    def _over(self, why: str) -> None:
        self._forget()
        self.inbox.lost(why, link=self._link)
