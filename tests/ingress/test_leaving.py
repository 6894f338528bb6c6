"""Clients that leave, clocks that pass, servers that stop: the slot is freed and nothing stays behind."""

import asyncio
import json
import os
import socket
import time

import pytest

from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.table import make_server

CHAT = b'{"model":"org/model","messages":[{"role":"user","content":"hi"}],"stream":true}'
UNARY = CHAT.replace(b"true", b"false")
PATH = "/v1/chat/completions"


async def forever(job, sink) -> None:
    sink.started(1, 1, {})
    while True:
        sink.text(0, "a", 1)
        await asyncio.sleep(0.005)


async def silent(job, sink) -> None:
    await asyncio.sleep(60)


def kept(backend) -> list:
    """Have the backend say a piece of text and keep the sink, for the test to say more; the sinks."""
    sinks = []

    async def play(job, sink) -> None:
        sinks.append(sink)
        sink.started(1, 1, {})
        sink.text(0, "a", 1)
        await asyncio.sleep(60)

    backend.play = play
    return sinks


@pytest.mark.parametrize("body", [CHAT, UNARY])
@pytest.mark.parametrize("play", [forever, silent])
@pytest.mark.parametrize("reset", [True, False])
async def test_a_client_that_leaves_frees_the_slot(server, backend, connect, body, play, reset, until) -> None:
    backend.play = play
    client = await connect(server)
    client.post(PATH, body)
    await until(lambda: backend.runs)
    if body is CHAT and play is forever:
        await client.head()
    if reset:
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    client.writer.close()
    left = time.perf_counter()
    await asyncio.wait_for(backend.runs[0].cancelled.wait(), 1)
    assert time.perf_counter() - left < 1
    await until(lambda: not server.inflight)
    assert backend.runs[0].times_cancelled == 1
    model = server.metrics.models["org/model"]
    assert (server.metrics.disconnected_clients, model.inflight, model.queued) == (1, 0, 0)
    assert sum(model.cancellations.values()) == 1


async def test_text_for_a_client_that_has_just_left_is_dropped(server, backend, connect, until) -> None:
    sinks = kept(backend)

    def more(left: int) -> None:
        sinks[0].text(0, "b", 1)  # straight to the socket
        written.append(left)
        if left:
            asyncio.get_running_loop().call_soon(more, left - 1)

    written: list[int] = []
    client = await connect(server)
    client.post(PATH, CHAT)
    await client.head()
    await client.chunk()
    next(iter(server._http.connections)).transport.abort()
    more(9)  # before, while and after the handler is told
    await until(lambda: not server.inflight)
    await until(lambda: written and written[-1] == 0)


async def test_nothing_of_a_stream_reaches_what_has_its_descriptor_afterwards(server, backend, connect, until) -> None:
    sinks = kept(backend)

    def more() -> None:
        sinks[0].text(0, "b", 1)
        if not closed():
            asyncio.get_running_loop().call_soon(more)
            return
        os.dup2(writer, number)  # as the next client's socket
        sinks[0].text(0, "c", 1)
        asyncio.get_running_loop().call_soon(done.set)

    def closed() -> bool:
        try:
            os.fstat(number)
        except OSError:
            return True
        return False

    done = asyncio.Event()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    client = await connect(server)
    client.post(PATH, CHAT)
    await client.head()
    await client.chunk()
    transport = next(iter(server._http.connections)).transport
    number = transport.get_extra_info("socket").fileno()
    sinks[0].text(0, "b", 1)
    await client.chunk()
    assert sinks[0].events.outlet.free, "past the transport"
    transport.abort()
    more()
    await asyncio.wait_for(done.wait(), 5)
    await until(lambda: not server.inflight)
    with pytest.raises(BlockingIOError):
        os.read(reader, 100)
    for one in (reader, writer, number):
        os.close(one)


async def test_a_client_that_leaves_while_it_sends_the_body(server, backend, connect, until) -> None:
    client = await connect(server)
    client.writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    await until(lambda: server.inflight)
    client.writer.close()
    await until(lambda: not server.inflight)
    assert not backend.jobs
    assert server.metrics.disconnected_clients == 1


async def test_a_request_that_ends_well_is_not_cancelled(server, backend, connect) -> None:
    client = await connect(server)
    for body in (CHAT, UNARY):
        client.post(PATH, body)
        _, headers = await client.head()
        await (client.chunks() if body is CHAT else client.body(headers))
    assert [run.times_cancelled for run in backend.runs] == [0, 0]


async def test_the_total_clock_before_the_first_byte_is_a_504(serve, backend, connect) -> None:
    backend.play = silent
    client = await connect(await serve(request_timeout=0.05))
    for body in (CHAT, UNARY):
        client.post(PATH, body)
        status, headers = await client.head()
        assert status == 504
        assert json.loads(await client.body(headers))["error"]["code"] == "timeout"
    assert [run.times_cancelled for run in backend.runs] == [1, 1]


async def test_the_total_clock_in_mid_stream_is_an_error_event(serve, backend, connect) -> None:
    backend.play = forever
    client = await connect(await serve(request_timeout=0.1))
    client.post(PATH, CHAT)
    await client.head()
    chunks = await client.chunks()
    assert b"event: error" in chunks[-1]
    assert backend.runs[0].times_cancelled == 1


async def test_the_total_clock_covers_a_backend_that_does_not_begin(serve, backend, connect) -> None:
    never = asyncio.Event()

    async def start(job, sink):
        await never.wait()

    backend.start = start
    client = await connect(await serve(request_timeout=0.05))
    client.post(PATH, CHAT)
    assert (await client.head())[0] == 504


async def test_a_reader_that_stalls_is_cut_off_by_the_total_clock(serve, backend, connect, until) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 1, {})
        sink.text(0, "x" * 20_000_000, 1)
        sink.finish(0, "stop", 1)

    backend.play = play
    server = await serve(request_timeout=0.2)
    client = await connect(server, 4096)
    client.post(PATH, CHAT)
    await until(lambda: backend.runs)
    await until(lambda: not server.inflight)


BIG = 8_000_000


async def big(job, sink) -> None:
    sink.started(1, 1, {})
    sink.text(0, "x" * BIG, 1)
    sink.finish(0, "stop", 1)


@pytest.mark.parametrize("body", [CHAT, UNARY])
async def test_a_reader_that_takes_nothing_is_left(serve, backend, connect, until, body) -> None:
    backend.play = big
    server = await serve(client_timeout=0.2)
    client = await connect(server, 4096)
    client.post(PATH, body)
    await until(lambda: backend.runs)
    await until(lambda: not server.inflight)


async def test_a_slow_reader_is_not_left(serve, backend, connect) -> None:
    backend.play = big
    client = await connect(await serve(client_timeout=0.1), 4096)
    client.post(PATH, CHAT)
    await client.head()
    got = 0
    while got < BIG // 2:  # for longer than the clock, a part at a time
        got += len(await client.reader.read(400_000))
        await asyncio.sleep(0.02)
    rest = b""
    while b"[DONE]" not in rest:
        data = await client.reader.read(1 << 20)
        assert data, "it was left"
        got += len(data)
        rest = rest[-100:] + data
    assert got > BIG


async def test_stop_lets_streams_finish(serve, backend, connect) -> None:
    go = asyncio.Event()

    async def play(job, sink) -> None:
        sink.started(1, 1, {})
        sink.text(0, "a", 1)
        await go.wait()
        sink.finish(0, "stop", 1)

    backend.play = play
    server = await serve()
    client, idle = await connect(server), await connect(server)
    client.post(PATH, CHAT)
    await client.head()
    port = server.port
    stopping = asyncio.create_task(server.stop(5))
    await asyncio.sleep(0.02)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(idle.reader.read(), 1) == b""
    assert not stopping.done()
    go.set()
    chunks = await client.chunks()
    assert b"[DONE]" in chunks[-1]
    await asyncio.wait_for(stopping, 1)
    assert backend.runs[0].times_cancelled == 0


@pytest.mark.parametrize("body", [CHAT, UNARY])
async def test_stop_ends_what_takes_longer_than_the_grace(serve, backend, connect, body, until) -> None:
    backend.play = forever
    server = await serve()
    client = await connect(server)
    client.post(PATH, body)
    await until(lambda: backend.runs)
    await asyncio.sleep(0.02)
    await asyncio.wait_for(server.stop(0.05), 3)
    status, headers = await client.head()
    if body is CHAT:
        last = (await client.chunks())[-1]
        assert b"event: error" in last
        assert b"shutting_down" in last
    else:
        assert status == 503
        assert json.loads(await client.body(headers))["error"]["code"] == "shutting_down"
    assert backend.runs[0].times_cancelled == 1
    assert server.inflight == 0


async def test_stop_ends_a_backend_that_does_not_begin(serve, backend, connect, until) -> None:
    never = asyncio.Event()

    async def start(job, sink):
        backend.runs.append(None)
        try:
            await never.wait()
        finally:
            backend.runs.clear()

    backend.start = start
    server = await serve()
    client = await connect(server)
    client.post(PATH, UNARY)
    await until(lambda: backend.runs)
    await asyncio.wait_for(server.stop(0.01), 4)
    assert backend.runs == []
    assert server.inflight == 0


async def test_a_given_socket_is_used(backend, connect) -> None:
    for listening in (False, True):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        if listening:
            sock.listen(5)
        server = make_server(FrontendSettings(port=1), backend)
        await server.start(sock, spawn=asyncio.create_task)
        assert server.port == sock.getsockname()[1]
        client = await connect(server)
        client.writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.head())[0] == 200
        await server.stop(0)
        await server.stop(0)


async def test_a_request_that_comes_while_the_server_stops_is_answered(server, backend, connect) -> None:
    """Its connection was accepted before: a client whose connection breaks does not know whether it was served."""
    client = await connect(server)
    stopping = asyncio.create_task(server.stop(5))
    await asyncio.sleep(0.05)
    client.post(PATH, UNARY)
    status, headers = await client.head()
    assert status == 200
    assert headers["connection"] == "close"
    await client.body(headers)
    await asyncio.wait_for(stopping, 5)


async def test_a_connection_without_a_request_does_not_hold_up_the_end(server, connect) -> None:
    await connect(server)
    await asyncio.wait_for(server.stop(60), 10)


async def test_an_idle_connection_that_was_used_is_closed_at_once(server, backend, connect) -> None:
    client = await connect(server)
    client.post(PATH, UNARY)
    _, headers = await client.head()
    await client.body(headers)
    stopping = asyncio.create_task(server.stop(60))
    assert await client.reader.read() == b""
    await stopping
