"""Answers of /v1/messages: the events of a stream, what text engines say, errors of every layer."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dynamod.features.anthropic import stream as stream_module
from dynamod.features.anthropic.errors import limit_headers
from dynamod.http.errors import Limit
from dynamod.message.errors import BadRequest, EngineFailed, Overloaded, RequestError

PATH = "/v1/messages"
BODY: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def body(**fields: Any) -> bytes:
    return json.dumps({**BODY, **fields}).encode()


def deltas(*found: dict[str, Any]) -> Any:
    """A play: chunks of a text engine."""

    async def play(_job: Any, sink: Any) -> None:
        sink.started(1, 0, {})
        for delta in found:
            sink.chunk(0, {"choices": [{"index": 0, "delta": delta}]})
            await asyncio.sleep(0)
        sink.finish(0, "tool_calls", 7, 5)

    return play


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {})
    return {"tool_calls": [{"index": index, "function": function, **more}]}


async def events_of(client: Any) -> list[dict[str, Any]]:
    found = []
    for frame in b"".join(await client.chunks()).decode().split("\n\n"):
        if frame:
            name, data = frame.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


async def message_of(client: Any, **fields: Any) -> dict[str, Any]:
    client.post(PATH, body(**fields))
    status, headers = await client.head()
    assert status == 200
    found: dict[str, Any] = json.loads(await client.body(headers))
    return found


async def test_the_events_of_a_text(server: Any, backend: Any, connect: Any) -> None:
    client = await connect(server)
    client.post(PATH + "?beta=true", body(stream=True, model="org/model"), x_request_id="mine", anthropic_version="1")
    status, headers = await client.head()
    assert (status, headers["request-id"], headers["x-request-id"]) == (200, "mine", "mine")
    start, ping, opened, *pieces, closed, delta, stop = await events_of(client)
    usage = {"cache_creation_input_tokens": None, "cache_read_input_tokens": None, "input_tokens": 5}
    assert start["message"] == {
        "id": "msg_mine", "type": "message", "role": "assistant", "model": "org/model", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0},
    }  # fmt: skip
    assert ping == {"type": "ping"}
    assert opened == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {(piece["type"], piece["index"], piece["delta"]["type"]) for piece in pieces} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert "".join(piece["delta"]["text"] for piece in pieces) == backend.text
    assert closed == {"type": "content_block_stop", "index": 0}
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"] == {**usage, "output_tokens": 5}
    assert stop == {"type": "message_stop"}
    whole = await message_of(client)
    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": backend.text}], "end_turn")


async def test_what_a_text_engine_says_in_pieces(server: Any, backend: Any, connect: Any) -> None:
    backend.play = deltas(
        {"role": "assistant", "content": ""},
        {"reasoning": "a"},
        {"reasoning_content": "b"},
        {"content": "c"},
        call(0, "", name="f", id="1"),
        call(0, '{"x":'),
        call(0, "1}"),
        call(1, "", name="g", id="2"),
    )
    client = await connect(server)
    content = [
        {"type": "thinking", "thinking": "ab", "signature": "dynamod"},
        {"type": "text", "text": "c"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
    ]
    whole = await message_of(client)
    assert (whole["content"], whole["stop_reason"]) == (content, "tool_use")
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) == (5, 7)
    client.post(PATH, body(stream=True))
    assert (await client.head())[0] == 200
    events = await events_of(client)
    assert [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"] == [
        block["type"] for block in content
    ]
    signed = [one["delta"]["signature"] for one in events if one.get("delta", {}).get("type") == "signature_delta"]
    assert signed == ["dynamod"]
    json_of = [one["delta"] for one in events if one["type"] == "content_block_delta" and one["index"] == 2]
    assert "".join(one["partial_json"] for one in json_of) == '{"x":1}'
    assert events[-2]["usage"]["input_tokens"] == 5


@pytest.mark.parametrize("wrong", [{"content": 1}, {"reasoning": [1]}, call(0, "{}"), {"tool_calls": 1}])
async def test_nonsense_of_a_text_engine(server: Any, backend: Any, connect: Any, wrong: dict[str, Any]) -> None:
    backend.play = deltas({"content": "x"}, wrong)
    client = await connect(server)
    client.post(PATH, body())
    status, headers = await client.head()
    assert (status, json.loads(await client.body(headers))["error"]["type"]) == (502, "api_error")
    client.post(PATH, body(stream=True))
    assert (await client.head())[0] == 200
    assert (await events_of(client))[-1]["error"]["type"] == "api_error"


async def test_the_input_of_a_call_that_is_no_object(server: Any, backend: Any, connect: Any) -> None:
    backend.play = deltas(call(0, "[1]", name="f"))
    client = await connect(server)
    client.post(PATH, body())
    assert (await client.head())[0] == 502


async def test_nothing_is_said(server: Any, backend: Any, connect: Any) -> None:
    backend.words = []
    client = await connect(server)
    assert (await message_of(client))["content"] == []
    client.post(PATH, body(stream=True))
    await client.head()
    names = [event["type"] for event in await events_of(client)]
    assert names == ["message_start", "ping", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("full", retry_after=3), 529, "overloaded_error"),
        (EngineFailed("broken"), 502, "api_error"),
        (BadRequest("no", code="context_length_exceeded"), 400, "invalid_request_error"),
    ],
)
async def test_errors(
    serve: Any, backend: Any, connect: Any, until: Any, error: RequestError, status: int, kind: str
) -> None:
    server = await serve(overload_status=529)
    client = await connect(server)
    backend.refuse = error
    for stream in (False, True):
        client.post(PATH, body(stream=stream), x_request_id="mine")
        found, headers = await client.head()
        value = json.loads(await client.body(headers))
        assert (found, value["type"], value["error"]["type"], value["request_id"]) == (status, "error", kind, "mine")
        assert headers.get("retry-after") == ("3" if status == 529 else None)
    assert value["error"]["message"] == ("prompt is too long: no" if status == 400 else str(error))

    async def play(_job: Any, sink: Any) -> None:
        sink.started(1, 5, {})
        sink.text(0, "some", 1)
        await until(lambda: sink.events.committed)
        sink.fail(error)

    backend.refuse, backend.play = None, play
    client.post(PATH, body(stream=True), x_request_id="mine")
    assert (await client.head())[0] == 200
    *_, text, last = await events_of(client)
    assert text["delta"] == {"type": "text_delta", "text": "some"}
    assert last == value


async def test_errors_of_the_http_layer(serve: Any, connect: Any) -> None:
    server = await serve(api_keys="k", body_limit_mb=0.001)
    client = await connect(server)
    for status, kind, headers, text in (
        (401, "authentication_error", {}, body()),
        (401, "authentication_error", {"x_api_key": "j"}, body()),
        (413, "request_too_large", {"x_api_key": "k"}, body(system="x" * 2000)),
        (415, "invalid_request_error", {"x_api_key": "k", "content_type": "text/plain"}, body()),
        (400, "invalid_request_error", {"authorization": "Bearer k"}, b"{"),
    ):
        client = await connect(server)
        client.post("/v1/messages/count_tokens", text, **headers)
        found, got = await client.head()
        value = json.loads(await client.body(got))
        assert (found, value["error"]["type"]) == (status, kind)
        assert value["request_id"] == got["request-id"]
    for path, form in ((PATH, "type"), ("/v1/chat/completions", "error")):
        client.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nx-api-key: k\r\n\r\n".encode())
        found, got = await client.head()
        assert found == 405
        assert form in json.loads(await client.body(got))


async def test_a_ping_in_silence(server: Any, backend: Any, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "IDLE", 0.05)

    async def play(_job: Any, sink: Any) -> None:
        await asyncio.sleep(0.2)
        sink.started(1, 5, {})
        sink.text(0, "a", 1)
        await asyncio.sleep(0.3)
        sink.text(0, "b", 1)
        sink.finish(0, "stop", 2)

    backend.play = play
    client = await connect(server)
    client.post(PATH, body(stream=True))
    assert (await client.head())[0] == 200
    names = [event["type"] for event in await events_of(client)]
    assert names[:4] == ["message_start", "ping", "content_block_start", "content_block_delta"]
    assert names[4] == "ping"
    assert names[-4:] == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]


async def test_text_of_a_slow_client_piles_up(server: Any, backend: Any, connect: Any) -> None:
    async def play(_job: Any, sink: Any) -> None:
        sink.started(1, 5, {})
        for _ in range(300):
            sink.text(0, "x" * 100_000, 1)
            await asyncio.sleep(0)
        sink.finish(0, "stop", 300)

    backend.play = play
    client = await connect(server, limit=2**16)
    client.post(PATH, body(stream=True))
    await client.head()
    await asyncio.sleep(0.3)
    events = await events_of(client)
    pieces = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert sum(map(len, pieces)) == 30_000_000
    assert len(pieces) < 300


async def test_the_feature_is_off(monkeypatch: pytest.MonkeyPatch, serve: Any, connect: Any) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-anthropic")
    client = await connect(await serve())
    client.post(PATH, body())
    status, headers = await client.head()
    error = json.loads(await client.body(headers))
    assert (status, error["type"]) == (404, "error")  # in the form that the route's clients read
    assert (
        "belongs to the feature 'anthropic', which is off: switched off by DYNAMOD_FEATURES"
        in error["error"]["message"]
    )


def test_limits_of_a_key_have_anthropics_names() -> None:
    found = limit_headers([Limit("requests", 10, 4, 30.0)])
    assert found["anthropic-ratelimit-requests-limit"] == "10"
    assert found["anthropic-ratelimit-requests-remaining"] == "4"
    reset = datetime.fromisoformat(found["anthropic-ratelimit-requests-reset"])
    assert 28 <= (reset - datetime.now(UTC)).total_seconds() <= 31
