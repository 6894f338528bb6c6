"""A connection between a daemon and a process: messages, questions both ways, and their ends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dynamod.message.errors import DynamodError, UserError
from dynamod.message.node import Heartbeat, Report, State
from dynamod.transport.channel import Channel
from dynamod.transport.framing import MAGIC, pack


class Pair:
    """Both ends of a connection; `heard` and `told` are what came down and up."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.told: list[Any] = []
        self.closed: list[str] = []
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Any, _name: str) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    async def open(self, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        above, below = socket.socketpair()
        self.daemon = Channel(
            self.told.append, daemon=True, closed=lambda: self.closed.append("daemon"), spawn=self.spawn
        )
        self.process = Channel(
            self.heard.append, closed=lambda: self.closed.append("process"), spawn=self.spawn, **options
        )
        self.process.send(Heartbeat())  # nobody is there yet: dropped, no error
        await loop.create_unix_connection(lambda: self.daemon, sock=above)
        await loop.create_unix_connection(lambda: self.process, sock=below)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    pair.daemon.close()
    pair.process.close()
    await pair.until(lambda: len(pair.closed) == 2)
    await asyncio.gather(*pair.tasks)


async def test_messages_go_both_ways_in_order_until_one_end_closes(pair: Pair) -> None:
    await pair.open()
    up = [State("Worker", "Ready", "x" * 200_000), Heartbeat(1.5, 7), State("Worker", "Stopped")]
    for message in up:
        pair.process.send(message)
    pair.daemon.send(Report("agg", ({"state": "Ready"},)))
    await pair.until(lambda: len(pair.told) == 3 and pair.heard)
    assert pair.told == up
    assert pair.heard == [Report("agg", ({"state": "Ready"},))]
    pair.daemon.close()
    await pair.until(lambda: len(pair.closed) == 2)
    assert not pair.process.open
    pair.process.send(Heartbeat())  # dropped


async def test_questions_and_their_answers(pair: Pair) -> None:
    async def answer(command: str, arguments: dict[str, Any]) -> Any:
        match command:
            case "mistake":
                raise UserError("no such thing", "try another")
            case "bug":
                raise KeyError("oops")
            case "slow":
                await asyncio.sleep(60)
        return {"command": command, **arguments}

    await pair.open(handler=answer)
    assert await pair.daemon.ask("inspect", {"actor": "x"}, timeout=5) == {"command": "inspect", "actor": "x"}
    with pytest.raises(UserError, match="no such thing") as mistake:
        await pair.daemon.ask("mistake", timeout=5)
    assert mistake.value.hint == "try another"
    with pytest.raises(DynamodError, match="KeyError: 'oops'"):
        await pair.daemon.ask("bug", timeout=5)
    with pytest.raises(TimeoutError):
        await pair.daemon.ask("slow", timeout=0.01)
    for task in pair.tasks:
        task.cancel()
    await asyncio.gather(*pair.tasks, return_exceptions=True)
    pair.tasks.clear()
    with pytest.raises(DynamodError, match="serve cannot be asked here"):
        await pair.process.ask("serve", timeout=5)


async def test_a_question_ends_with_the_connection(pair: Pair) -> None:
    async def never(command: str, arguments: dict[str, Any]) -> Any:
        pair.process.close()

    await pair.open(handler=never)
    with pytest.raises(DynamodError, match="has ended"):
        await pair.daemon.ask("anything", timeout=5)
    with pytest.raises(DynamodError, match="has ended"):
        await pair.daemon.ask("again", timeout=5)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", MAGIC + pack(b"\xc1"), MAGIC + pack(b"\x91\xa4what")])
async def test_strangers_and_nonsense_close_the_connection(data: bytes) -> None:
    above, below = socket.socketpair()
    closed = asyncio.Event()
    channel = Channel(lambda _message: None, daemon=True, closed=closed.set)
    with below:
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=above)
        below.sendall(data)
        async with asyncio.timeout(5):
            await closed.wait()
    assert channel.fault
