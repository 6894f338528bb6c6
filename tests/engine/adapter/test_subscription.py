"""KV events over a real ZMQ socket, from a publisher that speaks vLLM's form and can lose messages."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.engine.adapter import subscription
from dynamod.engine.adapter.subscription import Subscription
from dynamod.engine.adapter.wire import BlockRemoved, Event

zmq: Any = pytest.importorskip("zmq", reason="pyzmq comes with the engines")
importlib.import_module("zmq.asyncio")


class Publisher:
    """PUB and ROUTER sockets of vLLM's `ZmqEventPublisher`: `[topic, number, batch]`, repeated from a buffer."""

    def __init__(self, folder: Path, kept: int = 1000) -> None:
        self.endpoints = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.context = zmq.asyncio.Context()
        self.events, self.replay = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        for socket, endpoint in zip((self.events, self.replay), self.endpoints, strict=True):
            socket.bind(endpoint)
        self.buffer: list[tuple[bytes, bytes]] = []
        self.kept, self.asked = kept, list[int]()

    async def publish(self, *numbers: int, lose: bool = False, payload: bytes | None = None) -> None:
        for number in numbers:
            event = {"type": "BlockRemoved", "block_hashes": [number], "medium": "GPU"}
            batch = payload or msgspec.msgpack.encode([0.0, [event], 0])
            self.buffer = [*self.buffer, (number.to_bytes(8, "big"), batch)][-self.kept :]
            if not lose:
                await self.events.send_multipart([b"kv", *self.buffer[-1]])

    async def serve(self) -> None:
        while True:
            client, empty, start = await self.replay.recv_multipart()
            assert empty == b""
            self.asked.append(int.from_bytes(start, "big"))
            for number, batch in self.buffer:
                if number >= start:
                    await self.replay.send_multipart([client, b"", b"kv", number, batch])
            await self.replay.send_multipart([client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])


class Taken:
    def __init__(self) -> None:
        self.numbers: list[Any] = []

    def take(self, event: Event) -> None:
        assert isinstance(event, BlockRemoved)
        self.numbers += event.block_hashes

    def lost(self) -> None:
        self.numbers.append("lost")


@asynccontextmanager
async def listening(publisher: Publisher, *, replays: bool = True) -> AsyncIterator[tuple[Subscription, Taken]]:
    taken = Taken()
    found = Subscription(publisher.endpoints[0], publisher.endpoints[1] if replays else None, taken.take, taken.lost)
    tasks = [asyncio.ensure_future(publisher.serve()), asyncio.ensure_future(found.run())]
    try:
        yield found, taken
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        publisher.context.destroy(linger=0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def heard(publisher: Publisher, taken: Taken, number: int) -> int:
    """Publish until something is heard: a subscriber that has just connected misses what came before."""
    while not taken.numbers:
        await publisher.publish(number)
        number += 1
        await asyncio.sleep(0.02)
    return number


async def test_what_was_published_before_is_asked_for(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    await publisher.publish(0, 1, 2)
    async with listening(publisher) as (_, taken):
        await until(lambda: taken.numbers == [0, 1, 2])
        assert publisher.asked == [0]


async def test_a_gap_is_filled_in_order_and_doubles_are_dropped(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    async with listening(publisher) as (found, taken):
        number = await heard(publisher, taken, 0)
        await publisher.publish(number, number + 1, lose=True)
        await publisher.publish(number + 2)
        await until(lambda: found.expected == number + 3)
        await publisher.events.send_multipart([b"kv", *publisher.buffer[-1]])
        await publisher.publish(number + 3)
        await until(lambda: found.expected == number + 4)
        assert taken.numbers == list(range(number + 4))
        assert found.gaps >= 1
        assert found.losses == 0


async def test_what_is_not_in_the_buffer_any_more_is_lost(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, kept=2)
    async with listening(publisher) as (found, taken):
        number = await heard(publisher, taken, 0)
        taken.numbers.clear()
        before = found.losses  # on a busy machine the first events may be lost, too
        await publisher.publish(number, number + 1, number + 2, lose=True)
        await publisher.publish(number + 3)
        await until(lambda: found.expected == number + 4)
        assert taken.numbers == ["lost", number + 3]
        assert found.losses == before + 1


@pytest.mark.parametrize("replays", [False, True])
async def test_a_publisher_that_does_not_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replays: bool) -> None:
    monkeypatch.setattr(subscription, "REPLAY", 0.2)
    publisher = Publisher(tmp_path)
    publisher.replay.unbind(publisher.endpoints[1])
    async with listening(publisher, replays=replays) as (found, taken):
        number = await heard(publisher, taken, 1)
        assert taken.numbers[0] == "lost"
        taken.numbers.clear()
        await publisher.publish(number, lose=True)
        await publisher.publish(number + 1)
        await until(lambda: found.expected == number + 2)
        assert taken.numbers[-2:] == ["lost", number + 1]


async def test_a_batch_that_cannot_be_read_costs_what_is_known_and_no_more(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    async with listening(publisher) as (found, taken):
        number = await heard(publisher, taken, 0)
        taken.numbers.clear()
        await publisher.publish(number, payload=b"\xc1")
        await publisher.publish(number + 1)
        await until(lambda: found.expected == number + 2)
        assert taken.numbers == ["lost", number + 1]
