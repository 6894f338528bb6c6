"""The post over NATS when something breaks: the server, the network, a process, the mail itself."""

import asyncio
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Frame, Tokens
from dynamod.message.worker import Call, Request
from dynamod.transport.base import Reply
from dynamod.transport.nats import client as nats_client
from dynamod.transport.nats import wire as nats_wire
from dynamod.transport.nats.connection import NatsConnection
from dynamod.transport.nats.link import LinkEnd
from dynamod.transport.nats.settings import NatsSettings
from dynamod.transport.nats.transport import NatsServer
from dynamod.transport.nats.wire import DATA, HEADER, VERSION, Sender

from .nats_servers import INGRESS, QUICK, WORKER, Collector, House, Server, echo, process, serving, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


class Engine:
    """Accepts, and says what the test tells it to."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.cancelled: list[bool] = []

    def __call__(self, endpoint: str, request: Request, reply: Reply) -> None:
        self.replies.append(reply)
        reply.on_end(self.cancelled.append)
        reply.accepted()

    def say(self, number: int, last: bool = False) -> None:
        for reply in self.replies:
            reply.tokens(tokens.pack([number]), 1, "stop" if last else None)


async def test_a_server_that_restarts_quickly_costs_only_what_was_on_its_way(server: Server) -> None:
    engine = Engine()
    async with House(server.url, engine, alive=0.2, silence=3, patience=5) as house:
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        server.stop()
        await until(lambda: not house.worker.connected and not house.ingress.connected)
        for number in range(50):
            engine.say(number)
            await asyncio.sleep(0)
        late, _ = house.open()  # within the patience: it waits
        server.start()
        await until(lambda: sink.ids == list(range(50)))
        await until(lambda: late.deltas)
        assert sink.why is None
        assert len(sink.deltas) < 10, "merged while nothing could be sent"
        assert house.ingress.statistics().connects == 2


async def test_a_server_that_stays_away_fails_the_streams_and_new_requests_until_it_is_back(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    async with House(server.url, engine, **QUICK) as house:
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        server.stop()
        stopped = asyncio.get_running_loop().time()
        await sink.wait(5)
        assert "no connection to NATS at nats://127.0.0.1" in str(sink.why)
        assert sink.lost_at - stopped < 0.3 + 1
        await until(lambda: engine.cancelled == [True])
        before = asyncio.get_running_loop().time()
        refused, _ = house.open()
        assert refused.why is None, "never told from within open"
        await refused.wait()
        assert "no connection to NATS" in str(refused.why)
        assert refused.lost_at - before < 0.5
        await until(lambda: any("cannot be reached" in line for line in caplog.messages))
        server.start()
        await until(lambda: house.worker.connected and house.ingress.connected)
        again, _ = house.open()
        await until(lambda: again.deltas)
        engine.say(7, last=True)
        assert (await again.wait()).ids == [7]
        assert len(engine.replies) == 2


async def test_what_waited_for_nats_too_long_is_not_sent_later(server: Server) -> None:
    engine = Engine()
    async with House(server.url, engine, **QUICK) as house:
        server.stop()
        await until(lambda: not house.worker.connected and not house.ingress.connected)
        sink, _ = house.open()
        assert house.ingress.statistics().queued == 1
        await sink.wait()
        server.start()
        await until(lambda: house.worker.flowing and house.ingress.flowing)
        again, _ = house.open()
        await until(lambda: again.deltas)
        assert len(engine.replies) == 1


async def test_a_frozen_server_is_noticed_and_left(server: Server) -> None:
    engine = Engine()
    async with House(server.url, engine, **QUICK, connect_timeout=0.5) as house:
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        server.freeze()
        try:
            frozen = asyncio.get_running_loop().time()
            await sink.wait(5)
            assert sink.lost_at - frozen < 0.8 + 2 * 0.2 + 1
            await until(lambda: engine.cancelled == [True], 5)
            refused, _ = house.open()
            await refused.wait(5)
            assert "NATS" in str(refused.why)
            await asyncio.sleep(1)  # several attempts to reach it fail meanwhile
        finally:
            server.thaw()
        await until(lambda: house.worker.connected and house.ingress.connected)
        again, _ = house.open()
        await until(lambda: again.deltas)


async def test_a_large_message_into_a_frozen_server_ends_in_time(server: Server) -> None:
    async with House(server.url, Engine(), **QUICK, connect_timeout=0.5) as house:
        server.freeze()
        try:
            sinks = [house.open(Call("x", bytes(8_000_000)))[0] for _ in range(2)]
            for sink in sinks:
                await sink.wait(5)
            assert house.ingress.statistics().queued_bytes == 0
        finally:
            server.thaw()
        await until(lambda: house.worker.connected and house.ingress.connected)
        again, _ = house.open()
        await until(lambda: again.deltas)


async def test_more_waiting_mail_than_allowed_is_lost_not_kept(server: Server) -> None:
    async with House(server.url, Engine(), queue_bytes=1_000_000) as house:
        sink, _ = house.open(Call("x", bytes(8_000_000)))
        assert "takes messages too slowly" in str((await sink.wait()).why)
        again, _ = house.open()
        await until(lambda: again.deltas)


async def test_a_killed_worker_process_is_noticed(server: Server) -> None:
    async with House(server.url, echo, **QUICK) as house:
        with process(WORKER, server.url, "d_b.g-1") as worker:
            assert worker.stdout is not None
            assert await asyncio.to_thread(worker.stdout.readline) == b"ready\n"
            sink = Collector()
            house.transport.open(Instance("d", "b", "g", 1, {"nats": "d_b.g-1"}), Call("x"), sink)
            await until(lambda: sink.deltas)
            await asyncio.sleep(1)
            assert sink.why is None, "signs of life keep a silent stream"
            worker.kill()
            killed = asyncio.get_running_loop().time()
            await sink.wait()
            assert sink.lost_at - killed < 0.2 + 1
            assert "the process is gone" in str(sink.why)


async def test_a_stopped_worker_process_is_noticed_and_told_when_it_wakes(server: Server) -> None:
    async with House(server.url, echo, **QUICK) as house:
        with process(WORKER, server.url, "d_b.g-1") as worker:
            assert worker.stdout is not None
            await asyncio.to_thread(worker.stdout.readline)
            instance = Instance("d", "b", "g", 1, {"nats": "d_b.g-1"})
            sink, again = Collector(), Collector()
            house.transport.open(instance, Call("x"), sink)
            await until(lambda: sink.deltas)
            worker.send_signal(signal.SIGSTOP)
            await sink.wait()
            assert "nothing has come" in str(sink.why)
            worker.send_signal(signal.SIGCONT)
            house.transport.open(instance, Call("x"), again)
            await until(lambda: again.deltas)


async def test_a_killed_ingress_process_frees_the_worker(server: Server) -> None:
    engine = Engine()
    async with House(server.url, engine, **QUICK) as house:
        with process(INGRESS, server.url, house.subject) as ingress:
            assert ingress.stdout is not None
            await asyncio.to_thread(ingress.stdout.readline)
            await until(lambda: len(engine.replies) == 3)
            ingress.kill()
            await until(lambda: engine.cancelled == [True] * 3, 0.2 + 2)
        assert sum(one.streams for one in house.server.statistics()) == 0


class Forger:
    """Publishes what it likes to the ends of one open link."""

    def __init__(self, house: House, client: Any) -> None:
        self._client = client
        self.at_ingress = house.server.links()[0].peer
        (link,) = house.server._links.values()
        self.at_worker = link.address
        self.subject = house.subject

    async def to_ingress(self, *messages: bytes) -> None:
        for message in messages:
            await self._client.publish(self.at_ingress, message)
        await nats_client.settle(self._client, 1)

    async def to_worker(self, *messages: bytes) -> None:
        for message in messages:
            await self._client.publish(self.subject, message, self.at_ingress)
        await nats_client.settle(self._client, 1)


async def forge(house: House, messages: list[bytes], *, at_worker: bool = False) -> tuple[Collector, Engine]:
    """An open stream whose link gets some forged messages."""
    engine = house.server.receive
    assert isinstance(engine, Engine)
    sink, _ = house.open()
    await until(lambda: sink.deltas)
    client = nats_client.new_client()
    await client.connect(house.settings.servers[0])
    forger = Forger(house, client)
    await (forger.to_worker(*messages) if at_worker else forger.to_ingress(*messages))
    await client.close()
    await asyncio.sleep(0.05)
    return sink, engine


def lose(link: LinkEnd, payload: bytes) -> None:
    """Number a payload as if it had been sent."""
    link._sender.cut(payload, 10**6)


def data(number: int, body: bytes = b"x", length: int | None = None) -> bytes:
    return HEADER.pack(VERSION, DATA, len(body) if length is None else length, number) + body


async def test_doubled_messages_are_dropped_on_both_sides(server: Server) -> None:
    async with House(server.url, Engine()) as house:
        sink, engine = await forge(house, [data(1), data(1)])
        await forge(house, [data(1)], at_worker=True)
        engine.say(3, last=True)
        assert (await sink.wait()).ids == [3]
        assert sink.why is None
        assert house.transport.links()[0].doubled == 2
        assert house.server.links()[0].doubled == 1


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (data(3), "the connection lost frames (1 message missing)"),
        (data(9), "the connection lost frames (7 messages missing)"),
        (HEADER.pack(VERSION, nats_wire.ALIVE, 0, 5), "the connection lost frames (4 messages missing)"),
        (data(2, b"nonsense"), "corrupt frame"),
        (data(2, b"xy", 1), "corrupt message"),
        (b"short", "corrupt message"),
        (HEADER.pack(77, DATA, 0, 2), "version 77"),
        (nats_wire.end("go away"), "go away"),
    ],
    ids=["one lost", "many lost", "the last ones lost", "no frame", "bad pieces", "too short", "version", "end"],
)
@pytest.mark.parametrize("at_worker", [False, True], ids=["at ingress", "at worker"])
async def test_what_is_wrong_on_a_link_fails_it_on_both_sides_and_the_next_one_works(
    server: Server, message: bytes, why: str, at_worker: bool
) -> None:
    async with House(server.url, Engine(), alive=0.2) as house:
        sink, engine = await forge(house, [message], at_worker=at_worker)
        await sink.wait()
        if at_worker and message == nats_wire.end("go away"):
            assert "does not know" in str(sink.why)  # only the worker was told; the next sign of life is answered so
        else:
            assert why in str(sink.why)
        await until(lambda: engine.cancelled == [True])
        again, _ = house.open()
        await until(lambda: again.deltas)


async def test_frames_in_another_order_fail_the_link(server: Server) -> None:
    async with House(server.url, Engine()) as house:
        sender = Sender()
        frames = [Frame((Tokens(1, n, tokens.pack([n])),)) for n in range(3)]
        messages = [m for frame in frames for m in sender.cut(msgspec.msgpack.encode(frame), 1000)]
        sink, _ = await forge(house, [messages[2], messages[1]])  # number 1 was the worker's own
        await sink.wait()
        assert "lost frames" in str(sink.why)
        assert sink.ids == []


async def test_the_loss_of_the_last_frame_is_noticed(server: Server) -> None:
    engine = Engine()
    async with House(server.url, engine, **QUICK) as house:
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        (link,) = house.server._links.values()
        link._sender.cut(b"never sent", 100)
        await sink.wait()
        assert "lost frames" in str(sink.why)


async def test_the_loss_of_the_end_of_a_stream_is_noticed_though_the_worker_has_none_open(server: Server) -> None:
    engine = Engine()
    async with House(server.url, engine, **QUICK) as house:
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        (link,) = house.server._links.values()
        link.outbox._write = lambda payload: lose(link, payload)
        engine.say(1, last=True)
        await sink.wait()
        assert "lost frames" in str(sink.why)


async def test_the_loss_of_a_cancel_is_noticed_though_the_ingress_has_no_stream_open(server: Server) -> None:
    engine = Engine()
    async with House(server.url, engine, **QUICK) as house:
        sink, stream = house.open()
        await until(lambda: sink.deltas)
        (link,) = house.transport._links.values()
        link.inbox._write = lambda payload: lose(link, payload)
        stream.cancel()
        await until(lambda: engine.cancelled == [True])


async def test_a_slow_consumer_fails_the_link_with_a_clear_line(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with House(server.url, Engine(), pending_messages=8) as house:
        sink, _ = await forge(house, [data(n) for n in [1] * 200])
        await sink.wait()
        assert sink.why == "the connection lost frames: the reader is too slow"
        assert house.ingress.statistics().slow > 0
        assert any("reads too slowly" in line for line in caplog.messages)
        again, _ = house.open()
        await until(lambda: again.deltas)


async def test_a_stranger_at_the_workers_subject_changes_nothing(server: Server) -> None:
    async with House(server.url, Engine()) as house:
        client = nats_client.new_client()
        await client.connect(server.url)
        for message in (b"", b"hello", data(1, b"nonsense"), data(2), nats_wire.end("x"), Sender().alive()):
            await client.publish(house.subject, message)
            await client.publish(house.subject, message, "somewhere.else")
        await nats_client.settle(client, 1)
        await client.close()
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        await until(lambda: len(house.server.links()) == 1)


async def test_a_server_that_comes_late_is_waited_for_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path)
    tasks: list[asyncio.Task[None]] = []
    connection = NatsConnection(
        NatsSettings(servers=(server.url,)),
        lambda work, name: tasks.append(asyncio.get_running_loop().create_task(work)),
    )
    connection.start()
    worker = NatsServer(connection, "d_b.g-1", Engine())
    await worker.start()
    assert not await connection.ready(1.5)
    said = [line for line in caplog.messages if "cannot be reached" in line]
    assert said == [f"NATS at {server.url} cannot be reached: connection refused; trying on"]
    with caplog.at_level(logging.INFO, "dynamod.transport"):
        try:
            server.start()
            assert await connection.ready(5)
            assert f"connected to NATS at {server.url}" in caplog.messages
            await worker.close()
            await connection.close()
        finally:
            server.stop()
    async with asyncio.timeout(2):
        await asyncio.gather(*tasks)


async def test_a_connection_whose_owner_ends_leaves_nothing_behind(server: Server) -> None:
    house = House(server.url, Engine(), **QUICK)
    async with asyncio.timeout(10):
        house.worker.start()
        house.ingress.start()
        await house.server.start()
        assert await house.ingress.ready(5)
        assert await house.worker.ready(5)
        sink, _ = house.open()
        await until(lambda: sink.deltas)
        for task in house.tasks:
            task.cancel()
        await asyncio.gather(*house.tasks, return_exceptions=True)
        assert "no connection to NATS" in str((await sink.wait()).why)
        await house.transport.close()
        await house.server.close()
        await house.ingress.close()
        await house.worker.close()
    rest = {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task().get_name()}  # type: ignore[union-attr]
    assert not rest
