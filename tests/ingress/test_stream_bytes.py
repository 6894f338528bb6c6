"""Streams on the wire: frames, framing, keep-alive, slow and old clients."""

import asyncio
import json
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.http.outlet import HIGH_WATER
from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.completions import Completions
from dynamod.ingress.api.stream import ChunkFrames
from dynamod.message.errors import EngineFailed

CHAT = b'{"model":"org/model","messages":[{"role":"user","content":"hi"}],"stream":true}'
TEXT = b'{"model":"org/model","prompt":"hi","stream":true}'
PATH = "/v1/chat/completions"


def data(frame: bytes) -> dict:
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    return json.loads(frame[6:])


def frames_of(chunks: list[bytes]) -> list[bytes]:
    return [part + b"\n\n" for part in b"".join(chunks).split(b"\n\n") if part]


async def test_the_bytes_of_a_chat_stream(server, backend, connect) -> None:
    backend.words = ["a", "b"]
    client = await connect(server)
    client.post(PATH, CHAT, x_request_id="id-1")
    status, headers = await client.head()
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["x-request-id"], headers["transfer-encoding"]) == ("id-1", "chunked")
    first, second, final, done = frames_of(await client.chunks())
    created = data(first)["created"]
    same = {
        "id": "chatcmpl-id-1",
        "object": "chat.completion.chunk",
        "created": created,
        "model": "org/model",
        "system_fingerprint": None,
    }
    row = {"index": 0, "logprobs": None, "finish_reason": None}
    assert data(first) == same | {"choices": [row | {"delta": {"role": "assistant", "content": "a"}}]}
    assert data(second) == same | {"choices": [row | {"delta": {"content": "b"}}]}
    assert data(final) == same | {"choices": [row | {"delta": {}, "finish_reason": "stop"}]}
    assert done == b"data: [DONE]\n\n"


async def test_each_piece_of_text_is_one_http_chunk(server, backend, connect) -> None:
    go = asyncio.Event()

    async def play(job, sink) -> None:
        sink.started(1, 1, {})
        sink.text(0, "a", 1)
        await go.wait()
        sink.text(0, "b", 1)
        sink.text(0, "c", 1)
        sink.finish(0, "stop", 3)

    backend.play = play
    client = await connect(server)
    client.post(PATH, CHAT)
    await client.head()
    assert data(await client.chunk())["choices"][0]["delta"]["content"] == "a"
    go.set()
    assert data(await client.chunk())["choices"][0]["delta"] == {"content": "b"}
    assert data(await client.chunk())["choices"][0]["delta"] == {"content": "c"}


async def test_the_connection_lives_on_after_a_stream(server, backend, connect) -> None:
    client = await connect(server)
    for body in (CHAT, TEXT, CHAT):
        client.post(PATH if body is CHAT else "/v1/completions", body)
        assert (await client.head())[0] == 200
        assert frames_of(await client.chunks())[-1] == b"data: [DONE]\n\n"
    client.post(PATH, b"{")
    status, headers = await client.head()
    assert status == 400
    await client.body(headers)
    client.writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.head())[0] == 200


async def test_http_1_0_gets_no_chunk_framing_and_a_closed_connection(server, backend, connect) -> None:
    backend.words = ["a"]
    client = await connect(server)
    client.post(PATH, CHAT, version="1.0", connection="keep-alive")
    status, headers = await client.head()
    rest = await asyncio.wait_for(client.reader.read(), 5)
    assert status == 200
    assert "transfer-encoding" not in headers
    assert rest.startswith(b"data: {")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert data(frames_of([rest])[0])["choices"][0]["delta"]["content"] == "a"


async def test_usage_is_null_until_the_usage_chunk(serve, backend, connect) -> None:
    backend.words = ["a"]
    asked = TEXT[:-1] + b',"stream_options":{"include_usage":true}}'
    for settings, body, present in (({}, asked, True), ({"force_include_usage": True}, TEXT, True), ({}, TEXT, False)):
        client = await connect(await serve(**settings))
        client.post("/v1/completions", body)
        await client.head()
        frames = frames_of(await client.chunks())
        assert ("usage" in data(frames[0])) is present
        if present:
            assert data(frames[0])["usage"] is None
            assert data(frames[-2])["usage"] == {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
            assert data(frames[-2])["choices"] == []


async def test_continuous_usage(server, backend, connect) -> None:
    """Only where usage is asked for."""
    backend.words = ["a", "b"]
    for asked, counts in ((b"true", [1, 2, 2, 2]), (b"false", [None, None, None])):
        client = await connect(server)
        client.post(PATH, CHAT[:-1] + b',"stream_options":{"include_usage":%b,"continuous_usage_stats":true}}' % asked)
        await client.head()
        frames = frames_of(await client.chunks())
        assert [(data(frame).get("usage") or {}).get("completion_tokens") for frame in frames[:-1]] == counts


async def test_annotations_come_first_in_a_chunk_without_choices(server, backend, connect) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 2, {"formatted_prompt": "<user>\nhi", "token_ids": [1, 2]})
        sink.text(0, "a", 1)
        sink.finish(0, "stop", 1)

    backend.play = play
    client = await connect(server)
    asked = b',"nvext":{"annotations":["request_id","formatted_prompt","token_ids"]}}'
    client.post(PATH, CHAT[:-1] + asked, x_request_id="id-2")
    await client.head()
    frames = frames_of(await client.chunks())
    first = data(frames[0])
    assert (first["id"], first["choices"]) == ("chatcmpl-id-2", [])
    assert first["nvext"] == {"request_id": "id-2", "formatted_prompt": "<user>\nhi", "token_ids": [1, 2]}
    assert data(frames[1])["choices"][0]["delta"]["content"] == "a"


async def test_a_failure_in_mid_stream_is_an_error_event_without_done(server, backend, connect) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 2, {})
        sink.text(0, "a", 1)
        await asyncio.sleep(0.02)
        sink.fail(EngineFailed("died"))
        sink.text(0, "late", 1)

    backend.play = play
    client = await connect(server)
    client.post(PATH, CHAT)
    await client.head()
    frames = frames_of(await client.chunks())
    error = {"message": "died", "type": "server_error", "param": None, "code": "engine_failed"}
    assert len(frames) == 2
    assert frames[1].startswith(b"event: error\ndata: ")
    assert json.loads(frames[1].split(b"data: ")[1]) == {"error": error}
    assert backend.runs[0].times_cancelled == 0


async def test_a_choice_without_text_still_says_role_and_reason(server, backend, connect) -> None:
    backend.words = [""]
    client = await connect(server)
    client.post(PATH, CHAT)
    await client.head()
    final, _ = frames_of(await client.chunks())
    choice = data(final)["choices"][0]
    assert choice["delta"] == {"role": "assistant", "content": ""}
    assert choice["finish_reason"] == "stop"


async def test_a_slow_client_gets_merged_text_and_nothing_is_lost(server, backend, connect) -> None:
    """Neither the socket nor ours may hold frames without end: while the client sleeps, text becomes one string."""
    word, count = "0123456789" * 20, 20000
    written = asyncio.Event()
    sizes: list[int] = []

    async def play(job, sink) -> None:
        sink.started(2, 1, {})
        for number in range(count):
            sink.text(0, word, 1)
            sink.text(1, "x", 1)
            if number % 100 == 0:
                await asyncio.sleep(0)
                if (outlet := sink.events.outlet) is not None:
                    sizes.append(outlet.waiting)
        written.set()
        await asyncio.sleep(0.05)
        sink.finish(0, "stop", count)
        sink.finish(1, "stop", count)

    backend.play = play
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    client = await connect(server, 4096, sock)
    client.post(PATH, CHAT[:-1] + b',"n":2}')
    await asyncio.wait_for(written.wait(), 10)
    assert max(sizes) < HIGH_WATER + 2 * len(word) * 100 + 65536
    await client.head()
    texts = ["", ""]
    frames = frames_of(await client.chunks())
    for frame in frames[:-1]:
        choice = data(frame)["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [word * count, "x" * count]
    assert len(frames) < count


async def test_a_silent_stream_gets_comments_when_asked_for(serve, backend, connect) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 2, {})
        await asyncio.sleep(0.2)
        sink.text(0, "a", 1)
        sink.finish(0, "stop", 1)

    backend.play = play
    client = await connect(await serve(keep_alive=0.05))
    client.post(PATH, CHAT)
    await client.head()
    frames = frames_of(await client.chunks())
    comments = [frame for frame in frames if frame.startswith(b":")]
    assert len(comments) >= 2
    assert [frame.startswith(b":") for frame in frames] == [True] * len(comments) + [False] * 3


async def test_a_stream_that_flows_gets_no_comments(serve, backend, connect) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 2, {})
        for _ in range(30):
            sink.text(0, "a", 1)
            await asyncio.sleep(0.01)
        sink.finish(0, "stop", 30)

    backend.play = play
    client = await connect(await serve(keep_alive=0.15))
    client.post(PATH, CHAT)
    await client.head()
    assert [frame for frame in frames_of(await client.chunks()) if frame.startswith(b":")] == []


async def test_text_that_cannot_be_encoded_does_not_break_the_stream(server, backend, connect) -> None:
    backend.words = ["a\ud800b"]
    client = await connect(server)
    client.post(PATH, CHAT)
    await client.head()
    assert data(frames_of(await client.chunks())[0])["choices"][0]["delta"]["content"] == "a?b"


@pytest.mark.parametrize("chunk", [{"choices": 5}, {"choices": [{"delta": {"x": object()}}]}, {"choices": [3]}])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_chunk_that_is_no_chunk_fails_the_request(server, backend, connect, chunk, stream) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 2, {})
        sink.chunk(0, chunk)
        sink.finish(0, "stop", 1)

    backend.play = play
    client = await connect(server)
    client.post(PATH, CHAT if stream else CHAT.replace(b"true", b"false"))
    status, headers = await client.head()
    assert status == 502
    assert json.loads(await client.body(headers))["error"]["code"] == "engine_failed"


@given(text=st.text(), index=st.integers(0, 200), chunked=st.booleans(), first=st.booleans())
@pytest.mark.parametrize("form", [ChatCompletions(), Completions()])
def test_any_text_makes_one_decodable_frame(form, text, index, chunked, first) -> None:
    frames = ChunkFrames(form, "i", "m", 1, chunked=chunked)
    raw = frames.text(frames.prefix(index, first), text)
    if chunked:
        size, rest = raw.split(b"\r\n", 1)
        assert len(rest) == int(size, 16) + 2
        assert rest.endswith(b"\r\n")
        raw = rest[:-2]
    assert raw.count(b"\n") == 2
    choice = msgspec.json.decode(raw[6:])["choices"][0]
    assert choice["index"] == index
    assert (choice["delta"]["content"] if "delta" in choice else choice["text"]) == text
