"""`@api` endpoints over a real socket: bodies, answers, and what a client hears of a mistake."""

import json
import logging
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from dynamod.graph.endpoint import api
from dynamod.graph.service import service
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.service_http import ServiceHttp


class Mine:
    @api()
    async def echo(self, request: Any) -> AsyncIterator[str]:
        yield json.dumps(request)

    @api()
    async def breaks(self, request: Any) -> AsyncIterator[str]:
        if request is None:
            raise ValueError("a secret")
        yield "never"


async def asked(path: str, body: bytes, kind: str = "") -> tuple[int, str, str]:
    made = service(Mine)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        context = cast(ComponentContext, SimpleNamespace(listeners=lambda: [sock]))
        server = ServiceHttp(Mine(), list(made.endpoints.values()), context)
        await server.start()
        try:
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/{path}"
            headers = {"Content-Type": kind} if kind else {}
            async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
                return response.status, response.content_type, await response.text()
        finally:
            await server.stop()


@pytest.mark.parametrize(
    ("body", "kind", "status", "text"),
    [
        (b'{"a": 1}', "application/json", 200, '{"a": 1}'),
        (b'{"a": 1}', "application/x-www-form-urlencoded", 200, '{"a": 1}'),
        (b"", "", 200, "null"),
        (b"only words", "text/plain", 200, '"only words"'),
        (b"{torn", "application/json", 400, "the body is not valid JSON"),
        (b"{torn", "application/x-www-form-urlencoded", 400, "the body is not valid JSON"),
        (b"\xff\xfe{", "application/json", 400, "the body is no text"),
    ],
)
async def test_bodies(body: bytes, kind: str, status: int, text: str) -> None:
    got, content_type, answer = await asked("echo", body, kind)
    assert (got, content_type) == (status, "text/plain" if status == 200 else "application/json")
    assert text in answer
    if status != 200:
        assert json.loads(answer)["error"]["type"] == "invalid_request_error"


async def test_a_bug_of_the_service_is_an_error_object_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        status, kind, answer = await asked("breaks", b"")
    assert (status, kind) == (500, "application/json")
    assert json.loads(answer)["error"]["code"] == "internal_error"
    assert "secret" not in answer
    assert "a secret" in caplog.text
