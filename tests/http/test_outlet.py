"""The short way of streams to their sockets."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.http import turns
from dynamod.http.outlet import HIGH_WATER, Outlet, Outlets
from dynamod.http.turns import Turns


class Transport:
    """One whose socket is real and whose own writes are kept. `waits`: bytes that it says it holds."""

    def __init__(self, sock: socket.socket, tls: bool = False) -> None:
        self.extra = {"socket": sock, "sslcontext": object() if tls else None}
        self.written: list[bytes] = []
        self.waits, self.closing = 0, False

    def get_extra_info(self, name: str) -> Any:
        return self.extra.get(name)

    def get_write_buffer_size(self) -> int:
        return self.waits

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written.append(data)


class Pair:
    """A client's socket and what writes to it. `passed`: what went through the transport."""

    def __init__(self, outlets: Outlets, tls: bool = False) -> None:
        self.client, self.sock = socket.socketpair()
        for sock in (self.client, self.sock):
            sock.setblocking(False)
        self.transport = Transport(self.sock, tls)
        self.outlet = Outlet(cast("Any", self.transport), outlets, direct=True)

    def read(self) -> bytes:
        found = b""
        while True:
            try:
                data = self.client.recv(1 << 20)
            except BlockingIOError:
                return found
            if not data:
                return found
            found += data

    def close(self) -> None:
        self.client.close()
        self.sock.close()


@pytest.fixture
def outlets() -> Outlets:
    return Outlets()


@pytest.fixture
def pair(outlets: Outlets) -> Iterator[Pair]:
    made = Pair(outlets)
    yield made
    made.close()


async def test_frames_of_one_turn_leave_after_it_in_order(outlets: Outlets) -> None:
    one, two = Pair(outlets), Pair(outlets)
    for pair in (one, two):
        assert pair.outlet.ready()
    for number in range(3):
        one.outlet.put(b"one%d" % number)
        two.outlet.put(b"two%d" % number)
    assert (one.read(), two.read()) == (b"", b"")
    await asyncio.sleep(0)
    assert (one.read(), two.read()) == (b"one0one1one2", b"two0two1two2")
    assert one.transport.written == two.transport.written == []
    one.outlet.put(b"next")
    await asyncio.sleep(0)
    assert one.read() == b"next"
    for pair in (one, two):
        pair.close()


async def test_while_the_transport_holds_bytes_it_gets_all(pair: Pair) -> None:
    pair.outlet.put(b"head")  # as long as no look has said that nothing waits
    pair.transport.waits = 4
    assert pair.outlet.ready()
    pair.outlet.put(b"a")
    pair.transport.waits = HIGH_WATER + 1
    assert not pair.outlet.ready()
    pair.transport.waits = 0
    assert pair.outlet.ready()
    pair.outlet.put(b"b")
    await asyncio.sleep(0)
    assert (pair.transport.written, pair.read()) == ([b"head", b"a"], b"b")


async def test_what_the_socket_does_not_take_is_left_to_the_transport(pair: Pair) -> None:
    data = bytes(range(256)) * 4096
    assert pair.outlet.ready()
    pair.outlet.put(data)
    pair.outlet.put(b"behind")
    await asyncio.sleep(0)
    assert not pair.outlet.free
    pair.outlet.put(b"later")
    first = pair.read()
    assert first
    rest, later = pair.transport.written
    assert (first + rest, later) == (data + b"behind", b"later")


@given(st.lists(st.sampled_from(["put", "turn", "flush", "read", "drained"]), max_size=40))
def test_no_byte_is_lost_or_overtaken(steps: list[str]) -> None:
    async def run() -> None:
        outlets = Outlets()
        pair = Pair(outlets)
        pair.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        put = got = b""
        try:
            for number, step in enumerate([*steps, "turn"]):
                match step:
                    case "put":
                        frame = b"%04d" % number * 500
                        if pair.outlet.free or pair.outlet.ready():
                            pair.outlet.put(frame)
                            put += frame
                            pair.transport.waits = sum(map(len, pair.transport.written))
                    case "turn":
                        await asyncio.sleep(0)
                        pair.transport.waits = sum(map(len, pair.transport.written))
                    case "flush":
                        pair.outlet.flush()
                        pair.transport.waits = sum(map(len, pair.transport.written))
                    case "read":
                        got += pair.read()
                    case _:  # the transport sends what it holds when the client has read
                        got += pair.read() + b"".join(pair.transport.written)
                        pair.transport.written.clear()
                        pair.transport.waits = 0
            assert got + pair.read() + b"".join(pair.transport.written) == put
        finally:
            pair.close()

    asyncio.run(run())


async def test_a_client_that_has_left_gets_nothing(pair: Pair) -> None:
    assert pair.outlet.ready()
    pair.outlet.put(b"in this turn")
    pair.outlet.lost()
    assert not pair.outlet.ready()
    pair.outlet.put(b"late")
    await asyncio.sleep(0)
    assert (pair.read(), pair.transport.written, pair.outlet.waiting) == (b"", [], 0)


async def test_a_client_that_leaves_is_found_out_by_the_transport(pair: Pair) -> None:
    assert pair.outlet.ready()
    pair.client.close()
    pair.outlet.put(b"data")
    await asyncio.sleep(0)
    assert pair.transport.written == [b"data"]
    pair.transport.closing = True
    pair.outlet.put(b"more")
    assert pair.transport.written == [b"data"]


async def test_a_full_socket_and_a_client_that_has_left_keep_nothing_from_the_others(outlets: Outlets) -> None:
    pairs = [Pair(outlets) for _ in range(5)]
    _, full, _, gone, _ = pairs
    full.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    before = bytes(1 << 20)
    before = before[: full.sock.send(before)]
    gone.client.close()
    for number, pair in enumerate(pairs):
        assert pair.outlet.ready()
        pair.outlet.put(b"%d" % number)
    await asyncio.sleep(0)
    assert [one.read() for one in pairs if one is not gone] == [b"0", before, b"2", b"4"]
    assert [one.transport.written for one in pairs] == [[], [b"1"], [], [b"3"], []]
    assert [one.outlet.free for one in pairs] == [True, False, True, False, True]
    for pair in pairs:
        pair.close()


async def test_encrypted_bytes_are_the_transports(outlets: Outlets) -> None:
    pair = Pair(outlets, tls=True)
    assert pair.outlet.ready()
    pair.outlet.put(b"secret")
    await asyncio.sleep(0)
    assert (pair.transport.written, pair.read()) == ([b"secret"], b"")
    pair.close()


async def test_a_transport_that_wants_all_bytes_gets_them(pair: Pair, outlets: Outlets) -> None:
    outlet = Outlet(cast("Any", pair.transport), outlets, direct=False)
    assert outlet.ready()
    assert not outlet.free
    outlet.put(b"copied")
    assert (pair.transport.written, pair.read()) == ([b"copied"], b"")


async def test_frames_leave_before_requests_begin(
    pair: Pair, outlets: Outlets, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(turns, "perf_counter", lambda: now)
    some = Turns(outlets)
    assert pair.outlet.ready()
    seen: list[bytes] = []

    async def request() -> None:
        nonlocal now
        if (turn := some.begin()) is not None:
            await turn
        seen.append(pair.read())
        now += turns.TURN / 4.5  # four fit into a turn

    pair.outlet.put(b"token")
    await request()
    assert seen.pop() == b"token"
    await asyncio.sleep(0)

    tasks = [asyncio.create_task(request()) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the first turn has ended, and its end has woken the next requests
    assert 0 < len(seen) < 20
    begun = len(seen)
    pair.outlet.put(b"another")
    await asyncio.gather(*tasks)
    assert seen[begun] == b"another"
