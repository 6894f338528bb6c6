"""A worker sends its model's files: in order, in pieces, at the pace of whoever reads, beside the tokens of others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod import sample
from dynamod.actor import Actor, System
from dynamod.engine.base import EngineOptions
from dynamod.engine.echo import DELAY, EchoCore
from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.ingress import Delta, Items
from dynamod.message.worker import Files
from dynamod.preprocess import model_files as ship
from dynamod.preprocess.bundle import CHUNK, ModelBundle
from dynamod.runtime.dispatcher import EndpointDispatcher
from dynamod.transport.base import Sink
from dynamod.transport.inbox import ends
from dynamod.transport.unix import UnixServer, UnixTransport
from dynamod.worker import model_files as sending

BIG = {"tokenizer.json": bytes(range(256)) * 12 * 1024, "config.json": b"{}"}  # 3 MB: 13 pieces


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with System() as made:
        yield made


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DELAY, "1")


async def house_of(words: Any, system: System, name: str = "sample") -> Any:
    return await words.House(system, EchoCore, EngineOptions("m", sample.path(name))).start()


def content(answer: Any) -> dict[str, bytes]:
    bundle = ModelBundle()
    for delta in answer.deltas:
        if isinstance(delta, Items):
            for item in delta.items:
                bundle.add(item)
    return bundle.files()


@pytest.mark.parametrize("name", ["sample", "sample.gguf"])
async def test_the_files_are_sent(words: Any, system: System, name: str) -> None:
    house = await house_of(words, system, name)
    answer = await house.ask(Files("r", 20.0)).wait()
    assert answer.accepted
    assert answer.finish == "stop"
    assert content(answer) == ship.collect(house.published[0])
    assert house.statistics.accepted == house.statistics.open == 0, "it is no request of the engine's"


async def test_the_loop_goes_on_meanwhile(words: Any, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "collect", lambda _card: BIG)
    house = await house_of(words, system)
    answer = house.ask(Files("r"))
    other = house.ask(words.generate(list(range(20)), max_tokens=20))
    await answer.wait()
    await other.wait()
    assert content(answer) == BIG
    assert other.finish is not None
    sizes = [len(item) for delta in answer.deltas if isinstance(delta, Items) for item in delta.items]
    assert len(sizes) == 14
    assert max(sizes) == CHUNK
    assert all(len(delta.items) == 1 for delta in answer.deltas if isinstance(delta, Items)), "a frame each"


@pytest.mark.parametrize("error", [UserError("the model is gone", "put it back"), PermissionError("not for you")])
async def test_what_cannot_be_read_is_told_and_the_worker_lives(
    words: Any, system: System, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    house = await house_of(words, system)

    def broken(_card: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ship, "collect", broken)
        answer = await house.ask(Files("r")).wait()
    assert answer.error is not None
    assert answer.error.error == "EngineFailed"
    assert str(error) in answer.error.message
    assert (await house.ask(Files("r")).wait()).finish == "stop"


async def test_a_worker_that_ends_says_so(words: Any, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "pack", lambda _card: [b"x"] * 100_000)
    house = await house_of(words, system)
    answer = house.ask(Files("r"))
    await words.until(lambda: len(answer.deltas) > 3)
    await system.root.stop_child("worker", timeout=5)
    await answer.wait()
    assert answer.error is not None
    assert answer.error.retry


class Reader(Sink):
    """Takes what a real connection brings."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.over = asyncio.Event()

    def delta(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if ends(delta):
            self.over.set()

    def lost(self, why: str) -> None:
        raise AssertionError(why)

    async def wait(self) -> None:
        async with asyncio.timeout(20):
            await self.over.wait()


class _Net(Actor):
    """Owns the tasks of the post."""


@pytest.fixture
async def mail(system: System, words: Any, tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """A worker behind a unix socket."""
    house = await house_of(words, system)
    exchange = EndpointDispatcher()
    exchange.add(words.instance.path, house.ref)
    office = UnixServer(str(tmp_path / "office.sock"), exchange.receive)
    await office.start()
    net = system.start("net", _Net)
    await system.ready(net, timeout=5)
    cell = system.cell(net)
    assert cell is not None
    transport = UnixTransport(cell.actor.context.task)
    instance = Instance("dynamo", "backend", "generate", 1, {"unix": office.path})
    yield SimpleNamespace(transport=transport, server=office, instance=instance, house=house)
    await transport.close()
    await office.close()


async def test_over_a_socket(mail: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "collect", lambda _card: BIG)
    sink = Reader()
    mail.transport.open(mail.instance, Files("r", 20.0), sink)
    await sink.wait()
    assert content(sink) == BIG


async def test_a_reader_that_does_not_read_is_waited_for_with_a_bound(
    mail: Any, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "collect", lambda _card: {"tokenizer.json": bytes(30 << 20)})
    monkeypatch.setattr(sending, "READ_TIMEOUT", 0.3)
    sink = Reader()
    mail.transport.open(mail.instance, Files("r"), sink)
    (end,) = mail.transport._ends.values()
    await words.until(lambda: end._transport is not None)
    end._transport.pause_reading()
    await words.until(lambda: sum(one.streams for one in mail.server.statistics()) == 1)
    (connection,) = mail.server._connections
    await words.until(lambda: connection.outbox.backlog(1) > 0)
    most = 0
    async with asyncio.timeout(10):
        while any(one.streams for one in mail.server.statistics()):
            most = max(most, connection.outbox.backlog(1))
            await asyncio.sleep(0.005)
    assert 0 < most <= sending.MOST_QUEUED
    end._transport.resume_reading()
    await sink.wait()
    assert "could not be sent in time" in sink.deltas[-1].message  # type: ignore[union-attr]


async def test_a_reader_that_leaves_ends_it(mail: Any, words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "collect", lambda _card: {"tokenizer.json": bytes(30 << 20)})
    sink = Reader()
    stream = mail.transport.open(mail.instance, Files("r"), sink)
    await words.until(lambda: len(sink.deltas) > 2)
    stream.cancel()
    await words.until(lambda: sum(one.streams for one in mail.server.statistics()) == 0)
    count = len(sink.deltas)
    await asyncio.sleep(0.05)
    assert len(sink.deltas) == count
    cell = mail.house.system.cell(mail.house.ref)
    await words.until(lambda: not any("files" in task.get_name() for task in asyncio.all_tasks()))
    assert cell.state == "Ready"
