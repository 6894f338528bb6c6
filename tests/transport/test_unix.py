"""The unix post over real sockets: order, cancel, loss, credits, strangers."""

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Accepted, Delta, Failed, Frame, Items, Text, Tokens
from dynamod.message.worker import Call, Generate, Request
from dynamod.transport.base import Reply, Sink
from dynamod.transport.ends import IngressEnd
from dynamod.transport.framing import MAGIC, pack
from dynamod.transport.local import LocalTransport
from dynamod.transport.outbox import WINDOW
from dynamod.transport.unix import UnixServer, UnixTransport

ADDRESS = ("dynamo", "backend", "generate")


class Collector(Sink):
    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.why: str | None = None
        self.done = asyncio.Event()

    def delta(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if isinstance(delta, Failed) or getattr(delta, "finish", None) is not None:
            self.done.set()

    def lost(self, why: str) -> None:
        assert self.why is None, "lost is told once"
        self.why = why
        self.done.set()

    async def wait(self) -> None:
        async with asyncio.timeout(5):
            await self.done.wait()


class House:
    """An office and a post to it."""

    def __init__(self, path: Path, receive: Callable[[str, Request, Reply], None]) -> None:
        self.path = str(path / "w.sock")
        self.server = UnixServer(self.path, receive)
        self.tasks: list[asyncio.Task[None]] = []
        self.transport = UnixTransport(self.spawn)
        self.instance = Instance(*ADDRESS, 1, {"unix": self.path})

    def spawn(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()
        await self.server.close()
        await asyncio.gather(*self.tasks)


def echo(endpoint: str, request: Request, reply: Reply) -> None:
    assert endpoint == "dynamo.backend.generate"
    assert isinstance(request, Generate)
    reply.accepted()
    ids = tokens.unpack(request.token_ids)
    for position, token in enumerate(ids):
        last = position == len(ids) - 1
        reply.tokens(tokens.pack([token]), 1, "stop" if last else None)


async def test_tokens_arrive_in_order_and_the_stream_ends_once(tmp_path: Path) -> None:
    async with House(tmp_path, echo) as house:
        sinks = [Collector() for _ in range(20)]
        for number, sink in enumerate(sinks):
            house.transport.open(
                house.instance, Generate(str(number), "m", tokens.pack(range(number, number + 9))), sink
            )
        for number, sink in enumerate(sinks):
            await sink.wait()
            assert isinstance(sink.deltas[0], Accepted)
            got = [delta for delta in sink.deltas[1:] if isinstance(delta, Tokens)]
            assert [i for delta in got for i in tokens.unpack(delta.ids)] == list(range(number, number + 9))
            assert [delta.offset for delta in got] == list(range(9))
            assert got[-1].finish == "stop"
        assert sum(one.streams for one in house.server.statistics()) == 0


async def test_what_one_turn_of_the_loop_produces_for_many_streams_is_one_frame(tmp_path: Path) -> None:
    replies: list[Reply] = []
    async with House(tmp_path, lambda _e, _r, reply: replies.append(reply)) as house:
        sinks = [Collector() for _ in range(30)]
        for sink in sinks:
            house.transport.open(house.instance, Call("x"), sink)
        while len(replies) < 30:  # noqa: ASYNC110 - the office has no event to wait for
            await asyncio.sleep(0.01)
        for reply in replies:
            reply.text("word", 1, "stop")
        for sink in sinks:
            await sink.wait()
        (outbox,) = house.server.statistics()
        assert (outbox.frames, outbox.deltas) == (1, 30)


async def test_cancel_reaches_the_worker_and_the_sink_hears_no_more(tmp_path: Path) -> None:
    left = asyncio.Event()
    replies: list[Reply] = []

    def receive(endpoint: str, request: Request, reply: Reply) -> None:
        replies.append(reply)
        reply.on_cancel(left.set)
        reply.text("a", 1)

    async with House(tmp_path, receive) as house:
        sink = Collector()
        stream = house.transport.open(house.instance, Call("x"), sink)
        while not sink.deltas:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stream.cancel()
        async with asyncio.timeout(5):
            await left.wait()
        assert replies[0].cancelled
        replies[0].text("b", 1, "stop")
        await asyncio.sleep(0.05)
        assert [delta.text for delta in sink.deltas if isinstance(delta, Text)] == ["a"]
        assert sink.why is None
        stream.cancel()


async def test_a_confirmation_reaches_the_worker_until_the_stream_ends(tmp_path: Path) -> None:
    replies: list[Reply] = []
    known = asyncio.Event()

    def receive(endpoint: str, request: Request, reply: Reply) -> None:
        replies.append(reply)
        reply.on_confirm(known.set)
        reply.accepted()

    async with House(tmp_path, receive) as house:
        sink = Collector()
        stream = house.transport.open(house.instance, Call("x"), sink)
        while not sink.deltas:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not known.is_set()
        stream.confirm()
        async with asyncio.timeout(5):
            await known.wait()
        known.clear()
        replies[0].text("a", 1, "stop")
        await sink.wait()
        stream.confirm()
        await asyncio.sleep(0.05)
        assert not known.is_set()


async def test_a_worker_that_goes_is_told_to_each_open_sink_once(tmp_path: Path) -> None:
    async with House(tmp_path, lambda _e, _r, reply: reply.accepted()) as house:
        sinks = [Collector() for _ in range(3)]
        for sink in sinks:
            house.transport.open(house.instance, Call("x"), sink)
        while not all(sink.deltas for sink in sinks):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await house.server.close()
        for sink in sinks:
            await sink.wait()
            assert sink.why == "connection to the worker lost"


async def test_nobody_listening_is_lost_not_an_exception(tmp_path: Path) -> None:
    async with House(tmp_path, echo) as house:
        sink = Collector()
        house.transport.open(Instance(*ADDRESS, 2, {"unix": str(tmp_path / "nobody")}), Call("x"), sink)
        await sink.wait()
        assert sink.why is not None
        assert "cannot connect" in sink.why


async def test_a_connection_that_was_lost_is_made_anew_for_the_next_request(tmp_path: Path) -> None:
    async with House(tmp_path, echo) as house:
        for _ in range(2):
            sink = Collector()
            house.transport.open(house.instance, Generate("x", "m", tokens.pack([1])), sink)
            await sink.wait()
            assert sink.why is None
            house.transport._ends[house.path].fail("the worker is gone")


async def test_a_reader_without_credit_gets_the_rest_merged(tmp_path: Path) -> None:
    replies: list[Reply] = []
    async with House(tmp_path, lambda _e, _r, reply: replies.append(reply)) as house:
        sink = Collector()
        house.transport.open(house.instance, Call("x"), sink)
        while not replies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        outbox = next(iter(house.server._connections)).outbox
        outbox.credit(-(10**6))  # as if the reader had confirmed nothing for long
        for i in range(1000):
            replies[0].tokens(tokens.pack([i]), 1)
            await asyncio.sleep(0)
        assert outbox.statistics().waiting == 1
        outbox.credit(10**6 + WINDOW)
        replies[0].tokens(tokens.pack([1000]), 1, "stop")
        await sink.wait()
        got = [delta for delta in sink.deltas if isinstance(delta, Tokens)]
        assert [i for delta in got for i in tokens.unpack(delta.ids)] == list(range(1001))
        assert len(got) <= 3


async def test_more_frames_than_the_window_pass_because_the_reader_gives_credit(tmp_path: Path) -> None:
    replies: list[Reply] = []
    async with House(tmp_path, lambda _e, _r, reply: replies.append(reply)) as house:
        sink = Collector()
        house.transport.open(house.instance, Call("x"), sink)
        while not replies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for i in range(WINDOW * 5):
            replies[0].items((i,))
            await asyncio.sleep(0.001)
        replies[0].items((), "stop")
        await sink.wait()
        assert [item for d in sink.deltas if isinstance(d, Items) for item in d.items] == list(range(WINDOW * 5))


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n\r\n", b"dynamod\x09", b"dynamod\x01\xff\xff\xff\xff", b"dynamod\x01\x01\x00\x00\x00\xc1"],
)
async def test_strangers_and_corrupt_frames_are_closed_and_hurt_nobody_else(tmp_path: Path, junk: bytes) -> None:
    async with House(tmp_path, echo) as house:
        reader, writer = await asyncio.open_unix_connection(house.path)
        writer.write(junk)
        async with asyncio.timeout(5):
            assert await reader.read() == b"dynamod\x01"
        writer.close()
        await writer.wait_closed()
        sink = Collector()
        house.transport.open(house.instance, Generate("x", "m", tokens.pack([1])), sink)
        await sink.wait()
        assert sink.why is None


async def test_the_socket_is_private_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    async with House(tmp_path, echo) as house:
        assert os.stat(house.path).st_mode & 0o777 == 0o600
    path = tmp_path / "w.sock"
    import socket

    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    async with House(tmp_path, echo) as house:
        sink = Collector()
        house.transport.open(house.instance, Generate("x", "m", tokens.pack([1])), sink)
        await sink.wait()
        assert sink.why is None
    path.write_text("precious")
    with pytest.raises(OSError):
        await UnixServer(str(path), echo).start()
    assert path.read_text() == "precious"


async def test_a_large_request_passes(tmp_path: Path) -> None:
    async with House(tmp_path, lambda _e, r, reply: reply.items((len(getattr(r, "token_ids", b"")),), "stop")) as house:
        sink = Collector()
        house.transport.open(house.instance, Generate("x", "m", tokens.pack(range(300_000))), sink)
        await sink.wait()
        assert isinstance(sink.deltas[0], Items)
        assert sink.deltas[0].items == (1_200_000,)


async def test_local_post_passes_by_reference() -> None:
    seen: list[Request] = []

    def receive(endpoint: str, request: Request, reply: Reply) -> None:
        seen.append(request)
        reply.items((request,), "stop")

    sink, request = Collector(), Call("x", {"a": 1})
    LocalTransport(receive).open(Instance(*ADDRESS, 1, {}), request, sink)
    assert isinstance(sink.deltas[0], Items)
    assert sink.deltas[0].items[0] is request
    assert seen[0] is request


async def test_local_cancel() -> None:
    replies: list[Reply] = []
    sink = Collector()
    stream = LocalTransport(lambda _e, _r, reply: replies.append(reply)).open(
        Instance(*ADDRESS, 1, {}), Call("x"), sink
    )
    known: list[bool] = []
    replies[0].on_confirm(lambda: known.append(True))
    stream.confirm()
    assert known == [True]
    stream.cancel()
    replies[0].items((1,), "stop")
    assert replies[0].cancelled
    assert not sink.deltas


async def test_nothing_is_kept_of_workers_that_came_and_went(tmp_path: Path) -> None:
    tasks: list[asyncio.Task[None]] = []
    transport = UnixTransport(lambda work, name: tasks.append(asyncio.get_running_loop().create_task(work)))
    for number in range(50):
        server = UnixServer(str(tmp_path / f"{number}.sock"), echo)
        await server.start()
        sink = Collector()
        transport.open(Instance(*ADDRESS, number, {"unix": server.path}), Generate("1", "m", tokens.pack([1, 2])), sink)
        await sink.wait()
        assert len(server.statistics()) == 1
        await server.close()
        await asyncio.sleep(0)
        assert server.statistics() == []
    nobody = Collector()
    transport.open(Instance(*ADDRESS, 50, {"unix": str(tmp_path / "nobody.sock")}), Call("x"), nobody)
    await nobody.wait()
    await asyncio.sleep(0.01)
    assert transport.statistics() == {}
    await transport.close()


async def test_a_new_connection_to_a_place_outlives_the_news_of_the_old_ones_end(tmp_path: Path) -> None:
    async with House(tmp_path, lambda _e, _r, reply: reply.accepted()) as house:
        lost = Collector()
        house.transport.open(house.instance, Call("x"), lost)
        while not lost.deltas:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        house.transport._ends[house.path].fail("the worker is gone")
        assert lost.why is not None
        house.transport.open(house.instance, Call("x"), sink := Collector())
        while not sink.deltas:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert list(house.transport.statistics()) == [house.path]
        assert sink.why is None


async def read_to_the_end(client: socket.socket) -> None:
    """Fails where the other side leaves the connection open, or has lost its socket."""
    gc.collect()  # an unclosed socket is a warning
    client.setblocking(False)
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(client, 4096):
                pass


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_while_the_server_closes_is_closed(turns: int, tmp_path: Path) -> None:
    path = str(tmp_path / "w.sock")
    server = UnixServer(path, lambda *_: None)
    await server.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
        await read_to_the_end(client)


async def test_the_last_tokens_of_a_worker_that_has_closed_are_taken_although_a_write_to_it_failed() -> None:
    ours, theirs = socket.socketpair()
    end, sink = IngressEnd(lambda: None), Collector()
    await asyncio.get_running_loop().create_unix_connection(lambda: end, sock=ours)
    end.inbox.open("dynamo.backend.generate", Call("r"), sink)
    last = Frame((Tokens(1, 0, tokens.pack([7, 8]), "stop"),))
    theirs.sendall(MAGIC + pack(msgspec.msgpack.encode(last)))
    theirs.close()
    end.write(b"too late")
    await sink.wait()
    assert (sink.deltas, sink.why) == ([Tokens(1, 0, tokens.pack([7, 8]), "stop")], None)
