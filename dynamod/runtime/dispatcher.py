"""The exchange of a process: which actor has which endpoint address."""

import logging
from collections.abc import Callable

from dynamod.actor import MailboxFull, Ref
from dynamod.engine.base import Job
from dynamod.message.worker import Request
from dynamod.transport.base import Reply

log = logging.getLogger("dynamod.daemon")

Make = Callable[[Request, Reply], object]
"""Turns a request into the message type that the endpoint's actor takes."""


class EndpointDispatcher:
    """`receive` is what the request server calls for every new stream; it never blocks and never raises."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Ref, Make]] = {}

    def add(self, path: str, ref: Ref, make: Make = Job) -> None:
        """Requests for `namespace.component.endpoint` go to `ref` from now on."""
        self._places[path] = (ref, make)

    def remove(self, path: str) -> None:
        """The endpoint is not served here any more."""
        self._places.pop(path, None)

    def receive(self, endpoint: str, request: Request, reply: Reply) -> None:
        """See transport.base.Receive. A request without a receiver is refused so that the sender may try elsewhere."""
        place = self._places.get(endpoint)
        if place is None:
            reply.failed("Overloaded", f"{endpoint} is not served here", retry=True)
            return
        ref, make = place
        try:
            ref.send_nowait(make(request, reply))
        except MailboxFull:
            reply.failed("Overloaded", f"the mailbox of {endpoint} is full", retry=True)

    def places(self) -> list[str]:
        """The addresses served here."""
        return sorted(self._places)
