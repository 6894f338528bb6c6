"""Payloads of one turn of the loop leave together, in order."""

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from dynamod.actor.testing import virtual
from dynamod.transport.framing import AT_ONCE, LARGE, MAGIC, FramedProtocol, Unframer, pack


class Socket(asyncio.Transport):
    """Keeps what is written. `calls`: the payloads of each call, without the greeting."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    @property
    def payloads(self) -> list[bytes]:
        return [bytes(one) for one in Unframer().feed(b"".join(self.written))]

    @property
    def calls(self) -> list[int]:
        return [len([*Unframer().feed(MAGIC + one)]) for one in self.written[1:]]


def unconnected() -> FramedProtocol:
    return FramedProtocol(lambda payload: None, lambda why: None)


def connected() -> tuple[FramedProtocol, Socket]:
    end, socket = unconnected(), Socket()
    end.connection_made(socket)
    return end, socket


@virtual
async def test_payloads_of_one_turn_leave_together() -> None:
    end, socket = connected()
    sent = [b"%d" % number for number in range(2 * AT_ONCE + 3)]
    for one in sent:
        end.write_soon(one)
    await asyncio.sleep(0)
    assert socket.calls == [AT_ONCE, AT_ONCE, 3]
    end.write_soon(b"later")
    await asyncio.sleep(0)
    assert socket.payloads == [*sent, b"later"]
    assert socket.calls == [AT_ONCE, AT_ONCE, 3, 1]


@virtual
async def test_a_large_payload_keeps_its_place() -> None:
    end, socket = connected()
    large = bytes(LARGE + 1)
    for one in (b"before", large, b"between"):
        end.write_soon(one)
    end.write(b"at once")
    assert socket.payloads == [b"before", large, b"between", b"at once"]
    assert large in socket.written, "it is not copied"


@virtual
async def test_what_was_written_leaves_before_the_connection_closes() -> None:
    end, socket = connected()
    end.write_soon(b"last")
    end.close()
    assert socket.payloads == [b"last"]
    await asyncio.sleep(0)
    assert socket.closed


@virtual
async def test_what_is_written_before_the_connection_is_made_leaves_first() -> None:
    end, socket = unconnected(), Socket()
    end.write_soon(b"early")
    await asyncio.sleep(0)
    end.write_soon(b"same turn")
    end.connection_made(socket)
    await asyncio.sleep(0)
    assert socket.payloads == [b"early", b"same turn"]


@virtual
async def test_a_connection_that_has_ended_takes_nothing() -> None:
    end, socket = connected()
    end.write_soon(b"lost")
    end.fail("the worker is gone")
    end.write_soon(b"lost, too")
    await asyncio.sleep(0)
    assert socket.payloads == []


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_the_other_end_said_last_is_read_although_a_write_to_it_failed(factory: Any) -> None:
    heard: list[bytes] = []
    ended: list[str] = []

    async def run() -> None:
        ours, theirs = socket.socketpair()
        end = FramedProtocol(lambda payload: heard.append(bytes(payload)), ended.append)
        await asyncio.get_running_loop().create_unix_connection(lambda: end, sock=ours)
        theirs.sendall(MAGIC + pack(b"first"))
        while not heard:  # noqa: ASYNC110 - the loop reads
            await asyncio.sleep(0)
        theirs.sendall(pack(b"the reason") + pack(b"x" * 200_000) + pack(b"the end"))
        theirs.close()
        end.write(b"too late")
        while not ended:  # noqa: ASYNC110 - the loop reads
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
    assert [len(one) for one in heard] == [5, 10, 200_000, 7]
    assert heard[-1] == b"the end"
    assert len(ended) == 1
