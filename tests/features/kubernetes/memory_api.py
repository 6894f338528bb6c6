"""An API server in the process of the test, for virtual time: sessions of aiohttp that end here and not at a socket."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

LATENCY = 0.005
"""Seconds until an answer begins."""
BOOKMARK = 60.0
"""Seconds between bookmarks of a watch, as the real server has it."""
UP, REFUSING, SILENT = "up", "refusing", "silent"


class MemoryApi:
    """`state`: refusing, connections fail at once; silent, nothing is answered and open connections hear nothing.

    `requests`: (seconds, verb, plural) as they came, in every state. `short`: each watch is ended at once.
    """

    def __init__(self) -> None:
        self.state, self.short = UP, False
        self.version, self.oldest = 100, 0  # the first version whose changes are kept
        self.objects: dict[str, dict[str, Any]] = {"dynamodinstances": {}, "endpointslices": {}}
        self.history: list[tuple[int, str, str, Any]] = []
        self.requests: list[tuple[float, str, str]] = []
        self._stirred = asyncio.Event()
        self._epoch = 0  # connections of another epoch are broken

    def session(self, **_: Any) -> "MemorySession":
        """What stands for aiohttp.ClientSession."""
        return MemorySession(self)

    def away(self, state: str) -> None:
        """From now on. A server that refuses has closed its connections."""
        self.state = state
        self._epoch += state == REFUSING
        self._stir()

    def back(self, *, restarted: bool = False) -> None:
        """`restarted`: connections break, and only changes from now on are kept."""
        self.state = UP
        if restarted:
            self._epoch += 1
            self.version += 1
            self.oldest = self.version
        self._stir()

    def put(self, plural: str, value: Any) -> None:
        """As another client, or a controller, writes it."""
        self._happen("ADDED", plural, value)

    def remove(self, plural: str, name: str) -> None:
        self._happen("DELETED", plural, self.objects[plural][name])

    def _happen(self, what: str, plural: str, value: Any) -> None:
        self.version += 1
        value = json.loads(json.dumps(value))
        value["metadata"]["resourceVersion"] = str(self.version)
        if what == "DELETED":
            del self.objects[plural][value["metadata"]["name"]]
        else:
            self.objects[plural][value["metadata"]["name"]] = value
        self.history.append((self.version, plural, what, value))
        self._stir()

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = asyncio.Event()

    def counted(self, verb: str, since: float = 0.0) -> int:
        return sum(one == verb and at >= since for at, one, _ in self.requests)

    def busiest(self, since: float, verb: str = "") -> int:
        """The most requests within one second."""
        found = Counter(int(at - since) for at, one, _ in self.requests if at >= since and verb in ("", one))
        return max(found.values(), default=0)

    async def lines(self, plural: str, since: int, seconds: float) -> AsyncGenerator[bytes, None]:
        """A watch, until its time is over. Raises ServerDisconnectedError when the connection breaks."""
        if since < self.oldest:
            yield _line("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            return
        now = asyncio.get_running_loop().time
        end, epoch, bookmark = now() + (0 if self.short else seconds), self._epoch, now() + BOOKMARK
        while now() < end:
            stirred = self._stirred
            if self._epoch != epoch:
                raise aiohttp.ServerDisconnectedError
            if self.state == UP:
                for version, of, what, value in self.history:
                    if version > since and of == plural:
                        yield _line(what, value)
                since = self.version
            if now() >= bookmark:
                bookmark += BOOKMARK
                if self.state == UP:
                    yield _line("BOOKMARK", {"metadata": {"resourceVersion": str(since)}})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(bookmark, end) - now()):
                    await stirred.wait()


def _line(what: str, value: Any) -> bytes:
    return json.dumps({"type": what, "object": value}).encode() + b"\n"


class MemorySession:
    """The part of aiohttp.ClientSession that is used."""

    def __init__(self, server: MemoryApi) -> None:
        self._server = server

    async def close(self) -> None:
        """Nothing is open."""

    def get(self, url: str, **parts: Any) -> "MemoryAnswer":
        return MemoryAnswer(self._server, "GET", url, parts)

    def request(self, method: str, url: str, **parts: Any) -> "MemoryAnswer":
        return MemoryAnswer(self._server, method, url, parts)


class MemoryAnswer:
    """One request and its answer, with the time limits that the request has."""

    def __init__(self, server: MemoryApi, method: str, url: str, parts: dict[str, Any]) -> None:
        self._server, self._query, self._data = server, parts.get("params") or {}, parts.get("data")
        self._timeout: aiohttp.ClientTimeout = parts["timeout"]
        _, self._plural, *name = urlsplit(url).path.partition("/namespaces/")[2].split("/")
        self._name = "".join(name)
        watch = self._query.get("watch") == "true"
        self._verb = {"GET": "watch" if watch else "list", "PATCH": "patch", "DELETE": "delete"}[method]
        self._body = b""
        self.status, self.content = 200, self

    async def __aenter__(self) -> Self:
        server, plural = self._server, self._plural
        server.requests.append((asyncio.get_running_loop().time(), self._verb, plural))
        async with asyncio.timeout(self._timeout.total or self._timeout.sock_connect):
            if server.state == SILENT:
                await asyncio.Event().wait()
            await asyncio.sleep(LATENCY)
        if server.state == REFUSING:
            raise ConnectionRefusedError(111, "Connection refused")
        if self._verb == "list":
            items = list(server.objects[plural].values())
            self._body = json.dumps({"metadata": {"resourceVersion": str(server.version)}, "items": items}).encode()
        elif self._verb == "patch":
            server.put(plural, json.loads(self._data))
            self._body = self._data
        elif self._verb == "delete":
            server.remove(plural, self._name)
            self._body = b"{}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def read(self) -> bytes:
        return self._body

    async def iter_any(self) -> AsyncIterator[bytes]:
        lines = self._server.lines(
            self._plural, int(self._query["resourceVersion"]), float(self._query["timeoutSeconds"])
        )
        async with contextlib.aclosing(lines):
            while True:
                try:
                    async with asyncio.timeout(self._timeout.sock_read):
                        line = await anext(lines)
                except StopAsyncIteration:
                    return
                yield line
