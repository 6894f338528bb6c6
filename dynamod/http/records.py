"""Records of requests for features that read them; where none does, no code of this file runs.

A record is made shortly after the end of a request, together with those of others: code that has just run takes a
fraction of the time of code that the processor has to fetch again.
"""

import asyncio
import contextlib
import ipaddress
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import pairwise
from time import perf_counter
from typing import Any, cast

import msgspec
from aiohttp import web

from dynamod.message.errors import RequestError
from dynamod.observe.bounded import bounded
from dynamod.observe.records import ChoiceEnd, Facts, RequestRecord, WorkerPlace

from .context import GONE, Place, RequestContext, Response
from .settings import Network

log = logging.getLogger("dynamod.frontend")

ADDRESSES = 4096
"""Addresses that are remembered."""
PAUSE_S = 0.02
"""Seconds for which ended requests are gathered."""
AT_ONCE = 32
"""Ended requests that are gathered."""
LARGE = 64 * 1024
"""Bytes of a body from which a request that has ended does not wait: its body would stay in memory."""
CLOSE_S = 5.0
"""Seconds that readers get at the end of a server."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RecordReader(ABC):
    """Reads the records of one HTTP server. `body_bytes`: the largest body that it takes; 0: it wants no bodies.

    `headers`: names in small letters of headers of requests that it wants. `tokens`: it wants prompts and choices.
    """

    body_bytes: int = 0
    headers: Collection[str] = ()
    tokens: bool = False

    def begins(self, context: RequestContext, asked: Any) -> None:  # noqa: B027  # most readers have nothing to do then
        """A request is about to go to an engine, as `asked`. The reader may set `context.timeline.trace`."""

    def ends(self, context: RequestContext) -> None:  # noqa: B027  # most readers have nothing to do then
        """A request has ended; its record comes within PAUSE_S. For readers that count what a killed process loses."""

    @abstractmethod
    def take(self, record: RequestRecord) -> None:
        """Take one record. Called in the event loop soon after the end of each request: it must not wait."""

    @abstractmethod
    async def close(self) -> None:
        """Keep what was taken: the server has served its last request."""


class Ended(msgspec.Struct, frozen=True):
    """A request that has ended. `at`: by `perf_counter`. `time`: Unix seconds."""

    context: RequestContext
    status: int
    failed: RequestError | None
    bodies: "Bodies | None"
    at: float
    time: float


class Records:
    """Makes the records of one HTTP server for its readers.

    `proxies`: networks whose X-Forwarded-For names the client. `where()`: node and process of the server.
    """

    def __init__(
        self, readers: Sequence[RecordReader], proxies: Sequence[Network], where: Callable[[], tuple[str, str]]
    ) -> None:
        self._readers, self._proxies, self._where = list(readers), Proxies(proxies), where
        self._wants()
        self._facts: dict[RequestContext, Facts] = {}  # of open requests
        self._bodies: dict[RequestContext, Bodies] = {}  # of open requests
        self._ended: list[Ended] = []
        self._timer: asyncio.TimerHandle | None = None
        self._at_once = AT_ONCE
        self._large: set[RequestContext] = set()  # open requests with a large body

    def add(self, reader: RecordReader) -> None:
        """Give records to a further reader, of requests that end from now on."""
        self._readers.append(reader)
        self._wants()

    def _wants(self) -> None:
        readers = self._readers
        self._body_bytes = max(reader.body_bytes for reader in readers)
        self._headers = frozenset(name for reader in readers for name in reader.headers)
        self._tokens = any(reader.tokens for reader in readers)
        self._beginning = [one for one in readers if type(one).begins is not RecordReader.begins]
        self._ending = [one for one in readers if type(one).ends is not RecordReader.ends]

    def facts(self, context: RequestContext, asked: Any) -> Facts | None:
        """A request goes to an engine. Where to note its tokens; None: no reader wants them."""
        for reader in self._beginning:
            reader.begins(context, asked)
        if not self._tokens:
            return None
        self._facts[context] = found = Facts()
        return found

    def asked(self, context: RequestContext, body: bytes) -> None:
        """The body of a request is here."""
        if len(body) > LARGE:
            self._large.add(context)
        if self._body_bytes:
            self._bodies[context] = bodies = Bodies(self._body_bytes, body)
            context.request = cast("web.BaseRequest", CopiedRequest(context.request, bodies))

    def answered(self, context: RequestContext, response: web.StreamResponse) -> None:
        """The handler has a response."""
        bodies = self._bodies.get(context)
        if bodies is not None and isinstance(response, web.Response) and isinstance(response.body, bytes):
            bodies.whole(response.body)

    def take(self, context: RequestContext, status: int, failed: RequestError | None) -> None:
        """Give the record of a request to all readers, within PAUSE_S. `failed`: its error, also in a stream."""
        bodies = self._bodies.pop(context, None) if self._bodies else None
        self._ended.append(Ended(context, status, failed, bodies, perf_counter(), time.time()))
        for reader in self._ending:
            reader.ends(context)
        large = bool(self._large) and context in self._large
        if large:
            self._large.discard(context)
        if large or len(self._ended) >= self._at_once:
            self._hand_over()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._hand_over)

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._ended = self._ended, []
        for one in ended:
            try:
                record = self._made(one)
                for reader in self._readers:
                    reader.take(record)
            except Exception:  # the answer is out: a reader must not change how its request ends
                log.exception("request id=%s: a reader of its record failed", one.context.id)

    async def close(self) -> None:
        """Let all readers keep what they have taken, within CLOSE_S."""
        self._at_once = 1  # nothing waits any more
        self._hand_over()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for reader in self._readers:
                    await reader.close()

    def _made(self, ended: Ended) -> RequestRecord:
        context, status, failed, bodies = ended.context, ended.status, ended.failed, ended.bodies
        request, response = context.request, context.response
        took = ended.at - context.begun
        places = response.places if response is not None else ()
        first = response.first if response is not None else None
        workers = tuple([_worker(place) for place in places])
        node, process = self._where()
        facts = self._facts.pop(context, None) if self._facts else None
        return RequestRecord(
            id=context.id,
            time=ended.time - took,
            duration_ms=_ms(took),
            queue_ms=workers[0].at_ms if workers else None,
            first_ms=_ms(first) if first is not None else None,
            client=self._proxies.client(request),
            key=context.caller.name,
            method=request.method,
            path=request.rel_url.raw_path,
            endpoint=context.endpoint,
            model=context.asked_model,
            stream=context.stream,
            status=status,
            error=(failed.code or failed.kind) if failed is not None else "",
            finish="gone" if status == GONE else response.reasons if response is not None else "",
            prompt_tokens=response.prompt_tokens if response is not None else 0,
            cached_tokens=response.cached_tokens if response is not None else None,
            completion_tokens=response.output_tokens if response is not None else 0,
            workers=workers,
            migrations=_migrations(places) if len(places) > 1 else 0,
            notes=context.notes,
            node=node,
            process=process,
            request_body=bodies.request if bodies is not None else None,
            response_body=bodies.response if bodies is not None else None,
            headers=self._wanted(request) if self._headers else {},
            prompts=facts.prompts if facts is not None else (),
            choices=_ends(response, facts) if facts is not None and response is not None else (),
            samples=facts.samples if facts is not None else 1,
            timeline=context.timeline,
        )

    def _wanted(self, request: web.BaseRequest) -> dict[str, str]:
        headers = request.headers
        return {name: value for name in self._headers if (value := headers.get(name)) is not None}


class Bodies:
    """The bodies of one request, each None above `limit` bytes."""

    def __init__(self, limit: int, request: bytes) -> None:
        self._limit = limit
        self._streamed = bytearray()  # what went to the socket, with headers and framing
        self._whole: bytes | None = None
        self.request = request if len(request) <= limit else None

    def whole(self, body: bytes) -> None:
        """The response in one piece."""
        self._whole = body

    def add(self, data: bytes) -> None:
        """A part of a streamed response, as it goes to the socket. What comes above the limit is not kept."""
        if len(self._streamed) <= self._limit:
            self._streamed += data

    @property
    def response(self) -> bytes | None:
        """The response body; of a stream that was longer, the beginning."""
        if self._whole is not None:
            return self._whole if len(self._whole) <= self._limit else None
        return _payload(bytes(self._streamed)) if self._streamed else None


class CopiedRequest:
    """A request whose transport copies what is written to it."""

    def __init__(self, request: web.BaseRequest, bodies: Bodies) -> None:
        self._request, self._bodies = request, bodies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def transport(self) -> Any:
        """The connection, None when the client has left."""
        transport = self._request.transport
        return CopiedTransport(transport, self._bodies) if transport is not None else None


class CopiedTransport:
    """A transport that copies what is written to it."""

    def __init__(self, transport: asyncio.WriteTransport, bodies: Bodies) -> None:
        self._transport, self._bodies = transport, bodies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write and copy."""
        self._transport.write(data)
        self._bodies.add(data)


class Proxies:
    """Finds the addresses of clients. `trusted`: networks of proxies whose X-Forwarded-For names the client."""

    def __init__(self, trusted: Sequence[Network] = ()) -> None:
        self._trusted = trusted
        self._look = lru_cache(ADDRESSES)(self._look_at)  # the same clients ask again and again
        bounded(self, "addresses of clients", ADDRESSES, lambda one: one._look.cache_info().currsize, "addresses")

    def client(self, request: web.BaseRequest) -> str:
        """The client's address; empty where there is no connection: a line of a batch, a unix socket.

        Where a trusted proxy is at the other end of the connection: the last address in X-Forwarded-For that is no
        trusted proxy's.
        """
        found = getattr(request, "remote", None) or ""
        if not self._trusted or not found or not self._look(found)[1]:
            return found
        for text in reversed(",".join(request.headers.getall("X-Forwarded-For", ())).split(",")):
            address, trusted = self._look(text)
            if not address:
                break  # what stands before it was written by a proxy that writes no addresses
            found = address
            if not trusted:
                break
        return found

    def _look_at(self, text: str) -> tuple[str, bool]:
        """An address in its usual form, empty where the text is none, and whether it is a trusted proxy's."""
        address = _address(text)
        if address is None:
            return "", False
        return str(address), any(address in network for network in self._trusted)


def _address(text: str) -> Address | None:
    """An address, also with a port: `10.0.0.1:80`, `[::1]:80`. IPv4 in the form of IPv6 becomes IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _ends(response: Response, facts: Facts) -> list[ChoiceEnd]:
    answers, found = facts.answers, []
    for choice in response.choices:
        known = choice.index < len(answers)
        ids = answers[choice.index] if known else ()
        tokens = len(ids) if known else choice.tokens
        found.append(ChoiceEnd(choice.index, choice.reason or "", tokens, facts.calls(choice.index), ids))
    return found


def _worker(place: Place) -> WorkerPlace:
    choice, seconds, worker, prefill = place
    return WorkerPlace(worker.instance_id, worker.process, worker.node, _ms(seconds), choice, prefill)


def _migrations(places: Sequence[Place]) -> int:
    """How often a choice was placed at another worker than before."""
    visited: dict[int, list[int]] = {}
    for place in places:
        if not place.prefill:
            visited.setdefault(place.choice, []).append(place.worker.instance_id)
    return sum(before != after for one in visited.values() for before, after in pairwise(one))


def _ms(seconds: float) -> float:
    return int(seconds * 1e6 + 0.5) / 1000  # a tenth of the work of round()


def _payload(sent: bytes) -> bytes:
    """The body of a streamed response as it went to the socket, without header and chunked framing.

    Where aiohttp has written the header, it is not there. No event begins as a chunk does, with a number.
    """
    body = sent.partition(b"\r\n\r\n")[2] if sent.startswith(b"HTTP/") else sent
    parts: list[bytes] = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        try:
            length = int(size, 16)
        except ValueError:  # no framing, or cut within the number
            return b"".join(parts) or body
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)
