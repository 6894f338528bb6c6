"""What a text engine says about a request it cannot serve, as the client reads it."""

import asyncio
import json
from typing import Any

import pytest

from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.table import make_server
from tests.ports import listener

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        (
            ("BadRequest", "too long", {"param": "messages", "code": "context_length_exceeded"}),
            400,
            {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"},
        ),
        (("BadRequest", "no", {}), 400, {"type": "invalid_request_error", "param": None, "code": None}),
        (
            ("NotFound", "no such adapter", {"param": "model"}),
            404,
            {"type": "invalid_request_error", "param": "model", "code": "model_not_found"},
        ),
        (("EngineFailed", "out of memory", {}), 502, {"type": "server_error", "param": None, "code": "engine_failed"}),
        (
            ("Internal", "f raised ValueError", {}),
            500,
            {"type": "server_error", "param": None, "code": "internal_error"},
        ),
        (("EngineFailed", "x", {"code": "oom"}), 502, {"type": "server_error", "param": None, "code": "oom"}),
    ],
)
async def test_an_engines_error_reaches_the_client(
    house, words, connect, until, stream: bool, said: Any, status: int, expected: dict[str, Any]
) -> None:
    await house.start()
    member = await house.worker(words.Manual, "m")
    server = make_server(FrontendSettings(host="127.0.0.1", port=0), house.backend)
    await server.start(listener(), spawn=asyncio.create_task)
    error, message, more = said
    try:
        client = await connect(server)
        client.post("/v1/chat/completions", json.dumps({**BODY, "stream": stream}).encode())
        await until(lambda: member.engine.replies)
        member.engine.replies[0].failed(error, message, **more)
        found, headers = await client.head()
        assert found == status
        assert headers.get("x-should-retry") == ("false" if status == 500 else None)
        assert json.loads(await client.body(headers))["error"] == {"message": message, **expected}

        if stream:  # the same behind the first text: an event
            client.post("/v1/chat/completions", json.dumps({**BODY, "stream": True}).encode())
            await until(lambda: len(member.engine.replies) == 2)
            member.engine.replies[1].text("some", 1)
            assert (await client.head())[0] == 200
            member.engine.replies[1].failed(error, message, **more)
            *_, last = await client.chunks()
            event, data, *_ = last.decode().split("\n")
            assert event == "event: error"
            assert json.loads(data.removeprefix("data: "))["error"] == {"message": message, **expected}
    finally:
        await server.stop(0)
