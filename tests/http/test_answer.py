"""Answers in one piece, read as bytes: what is written at once says what aiohttp's own response says."""

import asyncio
import re
from typing import Any

import pytest
from aiohttp import web

from dynamod.http import answer
from dynamod.http.answer import WholeAnswer, json_response
from dynamod.http.context import RequestContext
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.http.stream import EventFrames, EventStream
from tests.ports import listener

BODY = b'{"a":"\xc3\xa4"}'


async def fast(_context: RequestContext) -> web.Response:
    return json_response({"a": "ä"}, headers={"X-Of": "ü"})


async def slow(_context: RequestContext) -> web.Response:
    return web.Response(body=BODY, headers={"X-Of": "ü"}, content_type="application/json")


async def evil(_context: RequestContext) -> web.Response:
    return json_response({}, headers={"X-Of": "a\r\nSet-Cookie: b=c"})


async def large(_context: RequestContext) -> web.Response:
    return json_response(["x" * 1000] * 4000)


async def closing(_context: RequestContext) -> web.Response:
    found = json_response({})
    found.force_close()
    return found


class Two:
    """A source with an event at once, and another a moment later."""

    open, error = True, None

    def __init__(self) -> None:
        self.changed, self.left = asyncio.Event(), [b"4\r\none\n\r\n"]
        asyncio.get_running_loop().call_later(0.05, self.end)

    def end(self) -> None:
        self.left.append(b"4\r\ntwo\n\r\n")
        self.open = False
        self.changed.set()

    def pending(self, committed: bool) -> bool:
        return bool(self.left)

    def take(self) -> bytes:
        data = b"".join(self.left)
        self.left.clear()
        return data

    def begins(self) -> None: ...

    def last(self) -> float:
        return 0.0


async def stream(context: RequestContext) -> web.StreamResponse:
    return await EventStream(EventFrames(True)).serve(Two(), context.request, {"X-Of": "ü", **context.headers}, 0)


HANDLERS = {"/stream": stream, "/fast": fast, "/slow": slow, "/evil": evil, "/large": large, "/closing": closing}


@pytest.fixture
async def port() -> Any:
    routes = [Route(method, path, one) for path, one in HANDLERS.items() for method in ("GET", "POST")]
    server = Server(FrontendSettings(), routes, dict)
    await server.start(listener(), spawn=asyncio.create_task)
    yield server.port
    await server.stop(0)


async def talk(port: int, *requests: str) -> bytes:
    """All that the server sends to these lines, until it closes or says nothing for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in requests:
        writer.write(f"{request}\r\nHost: x\r\nX-Request-Id: r\r\n\r\n".encode())
    found = b""
    try:
        while piece := await asyncio.wait_for(reader.read(1 << 16), 0.5):
            found += piece
    except TimeoutError:
        found += b"(open)"
    writer.close()
    return found


def unordered(found: bytes) -> tuple[list[bytes], bytes]:
    """The lines of the header in one order, without the time, and the rest."""
    head, rest = found.split(b"\r\n\r\n", 1)
    return sorted(re.sub(rb"(?m)^Date: \w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT", b"Date: now", head).split(b"\r\n")), rest


@pytest.mark.parametrize(
    "request_line",
    [
        "GET {} HTTP/1.1",
        "POST {} HTTP/1.1",
        "HEAD {} HTTP/1.1",
        "GET {} HTTP/1.0",
        "GET {} HTTP/1.1\r\nConnection: close",
    ],
)
async def test_the_bytes_are_those_of_aiohttp(port: int, request_line: str) -> None:
    mine, its = [await talk(port, request_line.format(path)) for path in ("/fast", "/slow")]
    assert unordered(mine) == unordered(its)
    assert b"Date: now" in unordered(mine)[0]


async def test_a_stream_is_as_aiohttp_writes_it(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = await talk(port, "GET /stream HTTP/1.1")
    monkeypatch.setattr(answer, "header", lambda *_: b"")
    its = await talk(port, "GET /stream HTTP/1.1")
    assert unordered(mine) == unordered(its)
    assert mine.endswith(b"\r\n\r\n4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\n(open)")


async def test_a_connection_serves_streams_and_answers(port: int) -> None:
    answers = await talk(port, *["GET /stream HTTP/1.1", "GET /fast HTTP/1.1"] * 2)
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert answers.endswith(BODY + b"(open)")


async def test_a_connection_serves_many_answers(port: int) -> None:
    found = await talk(port, *["GET /fast HTTP/1.1"] * 3)
    assert found.count(b"HTTP/1.1 200 OK") == found.count(BODY) == 3
    assert found.endswith(BODY + b"(open)")


async def test_a_line_break_in_a_header_is_refused(port: int) -> None:
    assert b"Set-Cookie" not in await talk(port, "GET /evil HTTP/1.1")


async def test_an_answer_that_closes_its_connection(port: int) -> None:
    found = await talk(port, "GET /closing HTTP/1.1", "GET /fast HTTP/1.1")
    assert found.endswith(b"\r\n\r\n{}")
    assert b"Connection: close" in found


async def test_a_large_answer_is_whole_for_a_slow_client(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
    writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
    await asyncio.sleep(0.2)
    assert len(await reader.readexactly(size)) == size > 4_000_000
    writer.close()


async def test_an_answer_that_is_not_out_is_not_prepared() -> None:
    found = WholeAnswer(body=b"x")
    assert not found.prepared
    assert not found.keep_alive
