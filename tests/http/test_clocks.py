"""Clients that send nothing, or half of something, and too many of them; with real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from dynamod.http import body, connection
from dynamod.http.body import read_body
from dynamod.http.context import RequestContext
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from tests.ports import listener


async def take(context: RequestContext) -> web.Response:
    return web.Response(body=await read_body(context.request, 5000))


@asynccontextmanager
async def serve() -> AsyncIterator[int]:
    server = Server(FrontendSettings(host="127.0.0.1", port=0), [Route("POST", "/take", take)], dict)
    await server.start(listener(), spawn=asyncio.create_task)
    try:
        yield server.port
    finally:
        await server.stop(grace=0)


async def closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("sent", [b"", b"POST /take HTTP/1.1\r\nHost: x\r\nX-Half"])
async def test_a_client_without_a_whole_header_is_disconnected(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connection, "HEADER", 0.2)
    async with serve() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader) == b""
        await end(writer)


async def test_half_a_body_is_a_408_and_slow_ones_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SILENT", 0.3)
    monkeypatch.setattr(connection, "HEADER", 0.2)
    head = b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nConnection: close\r\n\r\n"
    async with serve() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"abc")
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"}}")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
        await end(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        for byte in b"abcdef":
            await asyncio.sleep(0.1)
            writer.write(bytes([byte]))
        assert (await closed(reader)).endswith(b"abcdef")
        await end(writer)


async def test_a_body_that_trickles_ends_and_one_over_a_slow_link_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "GRACE", 0.4)
    head = b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\nConnection: close\r\n\r\n"
    async with serve() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = asyncio.ensure_future(reader.readuntil(b"}}"))
        for _ in range(100):
            writer.write(b"a")
            if (await asyncio.wait([answer], timeout=0.05))[0]:
                break
        said = await answer
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b"1000 bytes per second" in said
        await end(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        for _ in range(10):  # 3,000 bytes per second at most: longer than GRACE, and above the rate
            writer.write(b"b" * 300)
            await asyncio.sleep(0.1)
        assert (await closed(reader)).endswith(b"b" * 300)
        await end(writer)


async def test_more_clients_than_descriptors_for_them_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection.resource, "getrlimit", lambda _what: (connection.RESERVE + 20, 0))
    async with serve() as port:
        there = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await asyncio.sleep(0.1)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await closed(reader) == b""
            await end(writer)
        assert caplog.text.count("no more until some leave") == 1
        await end(there.pop()[1])
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
        assert (await closed(reader)).endswith(b"x")
        for _, one in [*there, (reader, writer)]:
            await end(one)


@pytest.mark.parametrize("sent", [b"", b"POST /take HTTP/1.1\r\nHost: x\r\nX-Half"])
async def test_a_connection_that_is_not_used_any_more_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connection, "IDLE", 0.3)
    async with serve() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        async with asyncio.timeout(5):
            await reader.readuntil(b"\r\n\r\nx")
        writer.write(sent)
        assert await closed(reader) == b""
        await end(writer)
