"""One request of a batch, answered by its endpoint as if a client had sent it, but after all requests of clients."""

import logging
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
from aiohttp import HttpVersion11, web
from yarl import URL

from dynamod.http.context import Caller, RequestContext
from dynamod.http.errors import error_object
from dynamod.http.keys import Keys
from dynamod.http.metrics import Metrics
from dynamod.message.errors import Internal, NotFound, RequestError
from dynamod.observe.logs import bound

from .input import RawEntry

if TYPE_CHECKING:
    from dynamod.ingress.api.endpoint import BodyEndpoint, Frontend

log = logging.getLogger("dynamod.frontend")

PRIORITY = -(2**31)
"""Requests of batches wait after all others."""
AGAIN = 1.0
"""Seconds until the next try for a model that may still appear."""


class LineCaller(Caller):
    """The caller of a request that is a line of a batch."""

    @property
    def priority(self) -> int:
        """Lower than the priority of all requests of clients."""
        return PRIORITY


class Later(Exception):
    """The server has no room for the request now. `seconds`: until the next try."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Asker:
    """Asks the endpoints of one server. `endpoints`: by path."""

    def __init__(
        self, frontend: "Frontend", keys: Keys, metrics: Metrics, endpoints: "Mapping[str, BodyEndpoint[Any]]"
    ) -> None:
        self._frontend, self._keys, self._metrics, self._endpoints = frontend, keys, metrics, endpoints

    def check_owner(self, owner: str) -> None:
        """Raise Unauthorized when the key of a batch no longer exists."""
        self._keys.client(owner)

    async def ask(
        self, entry: RawEntry, owner: str, name: str, models_until: float
    ) -> tuple[int, dict[str, Any] | msgspec.Raw]:
        """Ask one line; return status and body of the answer. `name`: id of the request. Raises Later, Unauthorized.

        `models_until`: monotonic time until which a missing model means Later, not a 404.
        """
        endpoint = self._endpoints.get(entry.url)
        if endpoint is None:  # the feature was switched off after the batch was made
            return NotFound.status, error_object(NotFound(f"{entry.url} is not served here", code="not_served"))
        request = SimpleNamespace(
            headers={"x-request-id": name}, method="POST", rel_url=URL(entry.url), version=HttpVersion11
        )
        context = RequestContext(cast("web.BaseRequest", request), self._metrics)
        context.caller = LineCaller(owner, self._keys.client(owner))
        status = 499
        context.endpoint = endpoint.label
        try:
            if context.caller.client is not None:
                context.caller.client.take(time.monotonic())
                context.caller.counts = True
            with bound(x_request_id=context.id), self._frontend.bodies.share() as share:
                share.grow(len(entry.body))
                response = await endpoint.take(self._frontend, context, entry.body)
            status = response.status
            return status, _one_line(cast("bytes", cast("web.Response", response).body))
        except RequestError as error:
            context.error, status = error.with_traceback(None), error.status
            missing = isinstance(error, NotFound) and error.param == "model" and time.monotonic() < models_until
            if error.retry_after is not None or missing:
                raise Later(error.retry_after or AGAIN) from None
            return status, endpoint.error_form.make(error, status, context.id)
        except Exception:
            log.exception("request id=%s of a batch failed unexpectedly", context.id)
            context.error = internal = Internal("internal error; the server's log has it under this request id")
            status = internal.status
            return status, endpoint.error_form.make(internal, status, context.id)
        finally:
            context.end(status)


def _one_line(body: bytes) -> msgspec.Raw:
    """The JSON of an answer without line breaks, for one line of a file."""
    return msgspec.Raw(msgspec.json.format(body, indent=-1) if b"\n" in body else body)
