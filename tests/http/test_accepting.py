"""Processes that share a listening socket have equal shares of its clients."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dynamod.http import accepting
from dynamod.http.accepting import PAUSE_S, Listener
from dynamod.message.shares import PROCESSES, Shares, forget, shared_memory


class Client(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, side: "Side") -> None:
        self._side = side

    def connection_made(self, transport: Any) -> None:
        self._side.clients.append(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._side.shares.closed()


class Side:
    """What one process has: the socket, its counts, its clients."""

    def __init__(self, sock: socket.socket, memory: int, place: int) -> None:
        self.shares = Shares(memory, place)
        self.shares.join()
        self.clients: list[Any] = []
        self.listener = Listener(sock.dup(), lambda: Client(self), None, self.shares, asyncio.create_task)


@pytest.fixture
def memory() -> Iterator[int]:
    found = shared_memory()
    assert found is not None
    yield found
    os.close(found)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


async def connect(sock: socket.socket, count: int) -> list[asyncio.StreamWriter]:
    return [(await asyncio.open_connection(*sock.getsockname()))[1] for _ in range(count)]


async def accepted(count: int, *sides: Side) -> None:
    async with asyncio.timeout(10):
        while sum(len(side.clients) for side in sides) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def gone(*ends: Any, sides: tuple[Side, ...] = ()) -> None:
    for end in ends:
        end.close()
    for side in sides:
        side.listener.close()
        for client in side.clients:
            client.close()
    await asyncio.sleep(0.01)


async def test_clients_are_shared_evenly_also_after_some_have_left(
    sock: socket.socket, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 0.1)  # all sides share a loop here, which may be late by more than 10 ms
    sides = tuple(Side(sock, memory, place) for place in (0, 1, 5))
    for side in sides:
        side.listener.start()
    clients = await connect(sock, 60)
    await accepted(60, *sides)
    assert [len(side.clients) for side in sides] == [20, 20, 20]
    for client in sides[2].clients[:10]:
        client.close()
    await asyncio.sleep(0.25)  # pauses that began before are over: at its end each takes a client
    clients += await connect(sock, 10)
    await accepted(70, *sides)
    assert [len(side.clients) for side in sides] == [20, 20, 30]
    await gone(*clients, sides=sides)


async def test_clients_of_a_process_that_hangs_are_accepted_by_another(sock: socket.socket, memory: int) -> None:
    side, hangs = Side(sock, memory, 0), Side(sock, memory, 1)
    side.listener.start()
    begun = time.monotonic()
    clients = await connect(sock, 200)
    await accepted(200, side)
    assert time.monotonic() - begun < 5, "the pauses become shorter"
    await gone(*clients, sides=(side, hangs))


@pytest.mark.parametrize("how", ["it has ended", "it is gone for good"])
async def test_who_has_left_is_not_waited_for(sock: socket.socket, memory: int, how: str) -> None:
    side, other = Side(sock, memory, 0), Side(sock, memory, 1)
    if how == "it has ended":
        other.shares.leave()
        other.shares.closed()  # its last clients leave later
    else:
        forget(memory, 1)
    side.listener.start()
    clients = await connect(sock, 3)
    async with asyncio.timeout(PAUSE_S * 50):
        await accepted(3, side)
    assert (side.shares.own(), side.shares.fewest()) == (4, 4)
    await gone(*clients, sides=(side, other))


async def test_without_descriptors_it_waits_and_goes_on(
    sock: socket.socket, memory: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dynamod.http.accepting.FULL_S", 0.05)
    side = Side(sock, memory, 0)

    class Full:
        """The socket of a process whose descriptors are used up."""

        left = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(sock, name)

        def accept(self) -> Any:
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return sock.accept()

    own = side.listener.sock
    side.listener.sock = Full()  # type: ignore[assignment]
    side.listener.start()
    clients = await connect(sock, 2)
    await accepted(2, side)
    text = "no client can be accepted for 0.05 s: Too many open files"
    assert [record.message for record in caplog.records] == [text]
    asyncio.get_running_loop().remove_reader(sock)
    side.listener.sock = own
    await gone(*clients, sides=(side,))


def test_a_process_beyond_the_memory_changes_nothing(memory: int) -> None:
    shares = Shares(memory, PROCESSES - 1)
    shares.join()
    forget(memory, PROCESSES)
    assert shares.fewest() == 1
    forget(memory, PROCESSES - 1)
    assert shares.fewest() == 0


async def test_a_protocol_that_cannot_be_made_costs_its_own_client_alone(
    sock: socket.socket, memory: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner of the task would end with it."""
    side, made = Side(sock, memory, 0), list[asyncio.Task[None]]()
    make = side.listener._make
    side.listener._make = lambda: 1 / 0  # type: ignore[assignment,return-value]
    side.listener._spawn = lambda work: made.append(asyncio.ensure_future(work))
    side.listener.start()
    (lost,) = await connect(sock, 1)
    await asyncio.sleep(0.05)
    side.listener._make = make
    clients = await connect(sock, 1)
    await accepted(1, side)
    assert [task.exception() for task in made] == [None, None]
    assert [record.message for record in caplog.records] == ["a connection could not begin"]
    assert (side.shares.own(), side.listener.beginning) == (2, 0)
    await gone(lost, *clients, sides=(side,))
