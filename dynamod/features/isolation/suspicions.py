"""Which requests were at workers that crashed or hung, and which of them are known to be the cause."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from hashlib import blake2b

import msgspec

from dynamod.discovery.view import View
from dynamod.message.discovery import Instance
from dynamod.message.errors import PoisonRequest
from dynamod.message.worker import Generate, Request
from dynamod.migration.stages import CAUSE, MakeStage
from dynamod.observe.bounded import bounded

from .stage import IsolationStage

REMEMBERED = 600.0
"""Seconds for which requests like one that crashed a worker are refused, or tried alone."""

MOST = 10_000
"""Requests that are remembered."""


class RequestSuspicions:
    """What an ingress process remembers of requests at crashes.

    `now`: seconds of a monotonic clock. `node()`: the name of this node.
    """

    def __init__(self, view: View, now: Callable[[], float], node: Callable[[], str]) -> None:
        self._view, self._now, self._node = view, now, node
        self._known: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # -> since when; the cause if it is guilty
        bounded(self, "suspect requests", MOST, lambda one: len(one._known), "requests")

    async def cause(self, instance: Instance, timeout: float | None = None) -> str:
        """Why an instance ended, if it crashed or hung; empty when it was ended on purpose, or the cause is unknown.

        `timeout`: seconds to wait for that; None: as long as it takes when the connection to it has failed. That of a
        process on another node is noticed by what is known of it.
        """
        if timeout is None:
            timeout = CAUSE if instance.node == self._node() else 0.0
        return await self._view.cause(instance, timeout)

    def hangs(self, instance: Instance) -> bool:
        """Whether an instance is known to hang now."""
        return self._view.quarantined(instance)

    def begin(self, request: Request) -> MakeStage:
        """The stage of a new request. Raises PoisonRequest for one like another that was guilty."""
        return partial(IsolationStage, self, self.check(request))

    def check(self, request: Request) -> bool:
        """Whether a new request is to be tried alone. Raises PoisonRequest for one like another that was guilty."""
        if not self._known:
            return False
        since, cause = self._known.get(_content(request), (0.0, ""))
        if not since or self._now() - since > REMEMBERED:
            return False
        if cause:
            raise _poison(cause, "another request like this one")
        return True

    def suspect(self, request: Request) -> None:
        """The request was at an instance that crashed or hung."""
        self._remember(request, "")

    def acquit(self, request: Request) -> None:
        """An instance has lived through it, alone: others like it are nothing special."""
        self._known.pop(_content(request), None)

    def convict(self, request: Request, cause: str) -> PoisonRequest:
        """It was alone there."""
        self._remember(request, cause)
        return _poison(cause, "this request")

    def _remember(self, request: Request, cause: str) -> None:
        key = _content(request)
        self._known[key] = (self._now(), cause)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)


def _poison(cause: str, who: str) -> PoisonRequest:
    return PoisonRequest(f"{who} ended two workers, the second one while it was alone there: {cause}")


def _content(request: Request) -> bytes:
    """What the engine works on: a prompt crashes it whatever the request's id, sampling and limits."""
    content = request.token_ids if isinstance(request, Generate) else msgspec.msgpack.encode(_anonymous(request))
    return blake2b(content, digest_size=16).digest()


def _anonymous(request: Request) -> Request:
    return msgspec.structs.replace(request, request_id="")
