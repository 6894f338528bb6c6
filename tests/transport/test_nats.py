"""The post over a real NATS server: order, cancel, credit, size, several readers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Accepted, Items, Text, Tokens
from dynamod.message.worker import Call, Generate, Request
from dynamod.transport.base import Reply
from dynamod.transport.nats.transport import NatsTransport
from dynamod.transport.outbox import WINDOW

from .nats_servers import Collector, House, Server, echo, serving, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Server]:
    """A server that takes messages of 1,000 bytes only."""
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 1000\n")
    with serving(tmp_path, "-c", str(config)) as server:
        yield server


async def test_tokens_arrive_in_order_and_the_stream_ends_once(server: Server) -> None:
    async with House(server.url, echo) as house:
        sinks = [house.open(Generate(str(n), "m", tokens.pack(range(n, n + 9))))[0] for n in range(20)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            assert isinstance(sink.deltas[0], Accepted)
            got = [delta for delta in sink.deltas[1:] if isinstance(delta, Tokens)]
            assert sink.ids == list(range(number, number + 9))
            assert [delta.offset for delta in got] == list(range(9))
            assert got[-1].finish == "stop"
        assert sum(one.streams for one in house.server.statistics()) == 0
        (inbox,) = house.transport.statistics().values()
        (outbox,) = house.server.statistics()
        assert (inbox.streams, inbox.late, outbox.streams) == (0, 0, 0)
        (ingress,), (worker,) = house.transport.links(), house.server.links()
        assert (ingress.sent, ingress.received) == (worker.received, worker.sent)
        assert ingress.peer == house.subject
        assert house.ingress.statistics().server == server.url


async def test_two_hundred_streams_at_once_leave_in_one_frame_per_step(server: Server) -> None:
    replies: list[Reply] = []
    async with House(server.url, lambda _e, _r, reply: replies.append(reply)) as house:
        sinks = [house.open()[0] for _ in range(200)]
        await until(lambda: len(replies) == 200)
        for step in range(30):
            for reply in replies:
                reply.tokens(tokens.pack([step]), 1, "stop" if step == 29 else None)
            await asyncio.sleep(0)
        for sink in sinks:
            assert (await sink.wait()).ids == list(range(30))
        (outbox,) = house.server.statistics()
        assert outbox.frames == 30


async def test_cancel_reaches_the_worker_and_the_sink_hears_no_more(server: Server) -> None:
    replies: list[Reply] = []
    left = asyncio.Event()

    def receive(endpoint: str, request: Request, reply: Reply) -> None:
        replies.append(reply)
        reply.on_cancel(left.set)
        reply.text("a", 1)

    async with House(server.url, receive) as house:
        sink, stream = house.open()
        await until(lambda: sink.deltas)
        stream.cancel()
        async with asyncio.timeout(5):
            await left.wait()
        assert replies[0].cancelled
        replies[0].text("b", 1, "stop")
        await asyncio.sleep(0.05)
        assert [delta.text for delta in sink.deltas if isinstance(delta, Text)] == ["a"]
        assert sink.why is None
        stream.cancel()


async def test_nobody_listening_is_known_at_once(server: Server) -> None:
    async with House(server.url, echo) as house:
        sink = Collector()
        begin = asyncio.get_running_loop().time()
        house.transport.open(Instance("d", "b", "g", 2, {"nats": "d_b.g-2"}), Call("x"), sink)
        assert not sink.done.is_set(), "never told from within open"
        await sink.wait()
        assert "no receiver" in str(sink.why)
        assert sink.lost_at - begin < 0.5
        assert (await house.ask([1, 2])).ids == [1, 2], "other links go on"


async def test_a_subject_that_nats_does_not_take_is_lost_too(server: Server) -> None:
    async with House(server.url, echo) as house:
        sink = Collector()
        house.transport.open(Instance("d", "b", "g", 2, {"nats": "not a subject"}), Call("x"), sink)
        await sink.wait()
        assert "invalid subject" in str(sink.why)
        assert (await house.ask([1])).ids == [1]


async def test_four_megabytes_both_ways(server: Server) -> None:
    async with House(server.url, lambda _e, r, reply: reply.items((getattr(r, "token_ids", b""),), "stop")) as house:
        ids = tokens.pack(range(1_000_000))
        sinks = [house.open(Generate("x", "m", ids))[0] for _ in range(2)]
        for sink in sinks:
            await sink.wait()
            (back,) = sink.items
            assert back == ids
        assert house.ingress.halves.used == house.worker.halves.used == 0


async def test_a_server_with_a_small_limit(small: Server) -> None:
    async with House(small.url, lambda _e, r, reply: reply.items((getattr(r, "token_ids", b""),), "stop")) as house:
        ids = tokens.pack(range(10_000))
        sink = await house.open(Generate("x", "m", ids))[0].wait()
        assert sink.items == [ids]
        assert house.transport.links()[0].sent > 40


async def test_a_frame_above_the_limit_fails_the_link_and_nothing_hangs(server: Server) -> None:
    async with House(server.url, lambda _e, _r, reply: reply.items((bytes(65 * 1024 * 1024),), "stop")) as house:
        sink, _ = house.open()
        await sink.wait()
        assert "above the limit" in str(sink.why)


async def test_a_reader_without_credit_gets_the_rest_merged(server: Server) -> None:
    replies: list[Reply] = []
    async with House(server.url, lambda _e, _r, reply: replies.append(reply)) as house:
        sink, _ = house.open()
        await until(lambda: replies)
        outbox = next(iter(house.server._links.values())).outbox
        outbox.credit(-(10**6))  # as if the reader had confirmed nothing for long
        for i in range(1000):
            replies[0].tokens(tokens.pack([i]), 1)
            await asyncio.sleep(0)
        assert outbox.statistics().waiting == 1
        outbox.credit(10**6 + WINDOW)
        replies[0].tokens(tokens.pack([1000]), 1, "stop")
        assert (await sink.wait()).ids == list(range(1001))
        assert len(sink.deltas) <= 3


async def test_more_frames_than_the_window_pass_because_the_reader_gives_credit(server: Server) -> None:
    replies: list[Reply] = []
    async with House(server.url, lambda _e, _r, reply: replies.append(reply)) as house:
        sink, _ = house.open()
        await until(lambda: replies)
        count = 5 * WINDOW
        for i in range(count):
            replies[0].tokens(tokens.pack([i]), 1, "stop" if i == count - 1 else None)
            await asyncio.sleep(0)
            if i % 8 == 0:
                await asyncio.sleep(0.001)
        assert (await sink.wait()).ids == list(range(count))
        (outbox,) = house.server.statistics()
        assert outbox.frames > WINDOW


async def test_two_ingresses_on_one_worker_are_two_origins_and_do_not_meet(server: Server) -> None:
    seen: list[tuple[Any, object]] = []

    def receive(endpoint: str, request: Request, reply: Reply) -> None:
        assert isinstance(request, Call)
        seen.append((request.payload, reply.origin))
        reply.items((request.payload,), None if request.payload == "stay" else "stop")

    async with House(server.url, receive) as one, House(server.url, receive) as two:
        sinks = {name: Collector() for name in ("a", "b", "c")}
        one.transport.open(one.instance, Call("x", "a"), sinks["a"])
        second = NatsTransport(two.ingress)  # of another process; the worker is the first house's
        second.open(one.instance, Call("x", "b"), sinks["b"])
        one.transport.open(one.instance, Call("x", "c"), sinks["c"])
        for name, sink in sinks.items():
            assert (await sink.wait()).items == [name]
        origins = dict(seen)
        assert origins["a"] is origins["c"]
        assert origins["a"] is not origins["b"]
        stays = Collector()
        one.transport.open(one.instance, Call("x", "stay"), stays)
        await until(lambda: stays.items)
        await second.close()
        assert len(await until_links(one, 1)) == 1
        assert stays.why is None
        # both houses listen at the same subject here: without queue groups each got its own copy
        assert {payload for payload, _ in seen} == {"a", "b", "c", "stay"}


async def until_links(house: House, count: int) -> list[Any]:
    await until(lambda: len(house.server.links()) == count)
    return house.server.links()


async def test_idle_links_send_nothing_and_are_forgotten_on_both_sides(server: Server) -> None:
    async with House(server.url, echo, alive=0.1, idle=0.5) as house:
        await house.ask([1, 2, 3])
        (before,) = house.server.links()
        counts = house.worker.statistics().received, house.ingress.statistics().received
        await asyncio.sleep(0.35)
        pulses = 5  # each connection's own sign of life
        assert house.server.links() == [before]
        assert house.worker.statistics().received <= counts[0] + pulses
        assert house.ingress.statistics().received <= counts[1] + pulses
        await until(lambda: not house.transport.statistics() and not house.server.statistics())
        assert house.ingress.statistics().links == house.worker.statistics().links == 0
        assert (await house.ask([4])).ids == [4]


async def test_an_office_that_closes_tells_its_readers_and_one_that_comes_later_takes_requests(server: Server) -> None:
    async with House(server.url, lambda _e, _r, reply: reply.accepted()) as house:
        sinks = [house.open()[0] for _ in range(3)]
        await until(lambda: all(sink.deltas for sink in sinks))
        await house.server.close()
        for sink in sinks:
            assert (await sink.wait()).why == "the worker is stopping"
        late, _ = house.open()
        assert "no receiver" in str((await late.wait()).why)
        await house.server.start()
        again, _ = house.open()
        await until(lambda: again.deltas)


async def test_a_post_that_closes_frees_the_worker(server: Server) -> None:
    cancelled: list[bool] = []

    def receive(endpoint: str, request: Request, reply: Reply) -> None:
        reply.on_end(cancelled.append)
        reply.accepted()

    async with House(server.url, receive) as house:
        sinks = [house.open()[0] for _ in range(3)]
        await until(lambda: all(sink.deltas for sink in sinks))
        house.transport.forget(house.subject)
        house.transport.forget("unknown")
        for sink in sinks:
            assert sink.why == "the worker is gone"
        await until(lambda: len(cancelled) == 3)
        assert cancelled == [True, True, True]
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        assert isinstance(sink.deltas[0], Accepted)


async def test_items_of_a_fast_endpoint_arrive_whole(server: Server) -> None:
    def receive(endpoint: str, request: Request, reply: Reply) -> None:
        for number in range(300):
            reply.items((number, "x" * 1000))
        reply.items((), "stop")

    async with House(server.url, receive) as house:
        sink, _ = house.open()
        await sink.wait()
        assert sink.items[::2] == list(range(300))
        assert isinstance(sink.deltas[-1], Items)
