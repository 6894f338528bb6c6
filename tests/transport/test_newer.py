"""Messages of a newer release: skipped and counted, and a request gets an error; nothing that runs is cut."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dynamod.message import kv_events, newer, tokens
from dynamod.message.ingress import Accepted, Failed, Frame, Tokens
from dynamod.message.node import Ask, Heartbeat, State
from dynamod.message.worker import Open, Request
from dynamod.transport.base import Reply, Sink
from dynamod.transport.channel import Channel
from dynamod.transport.inbox import Inbox
from dynamod.transport.outbox import Outbox

encode = msgspec.msgpack.encode


class Seen(Sink):
    def __init__(self) -> None:
        self.deltas: list[Any] = []

    def delta(self, delta: Any) -> None:
        self.deltas.append(delta)


@pytest.fixture
def skipped() -> Callable[[], int]:
    before = newer.skipped()
    return lambda: newer.skipped() - before


async def answered(message: Any) -> tuple[list[Any], list[tuple[str, Request, Reply]]]:
    """What a worker's end says to a message after a stream 1 that is open, and the streams that its actors get."""
    sent: list[bytes] = []
    begun: list[tuple[str, Request, Reply]] = []
    outbox = Outbox(sent.append)
    outbox.take(encode(["open", 1, "n.c.e", ["describe", "r"]]), lambda *stream: begun.append(stream))
    outbox.take(encode(message), lambda *stream: begun.append(stream))
    begun[0][2].accepted()
    await asyncio.sleep(0)
    deltas = [delta for payload in sent for delta in msgspec.msgpack.decode(payload, type=Frame).deltas]
    return deltas, begun


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(["open", 2, "n.c.e", ["dream", "r", {"of": "sheep"}]], id="an unknown request"),
        pytest.param(["open", 2, "n.c.e", ["chat", "r", "m", "video", b"{}"]], id="a request with a newer value"),
        pytest.param(["open2", 2, {"endpoint": "n.c.e"}], id="another way to begin a stream"),
    ],
)
async def test_a_request_that_a_worker_does_not_know_is_refused_so_that_another_is_asked(
    message: Any, skipped: Callable[[], int]
) -> None:
    deltas, begun = await answered(message)
    (failed,) = [delta for delta in deltas if isinstance(delta, Failed)]
    assert (failed.stream, failed.retry) == (2, True)
    assert "release cannot read" in failed.message
    assert Accepted(1) in deltas, "the other stream lives"
    assert len(begun) == 1
    assert skipped() == 1


async def test_a_message_about_a_stream_is_skipped_and_the_stream_lives(skipped: Callable[[], int]) -> None:
    deltas, _ = await answered(["pause", 1, 5.0])
    assert deltas == [Accepted(1)]
    assert skipped() == 1


@pytest.mark.parametrize("message", [["credit", "x"], ["cancel"], [], {"a": 1}, ["open", 1]])
async def test_a_damaged_message_is_still_refused(message: Any, skipped: Callable[[], int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        await answered(message)
    assert skipped() == 0


def test_unknown_parts_of_a_frame_are_skipped_and_the_rest_arrives(skipped: Callable[[], int]) -> None:
    inbox, sink = Inbox(lambda _payload: None), Seen()
    request: Any = msgspec.msgpack.decode(encode(["describe", "r"]), type=Request)
    stream = inbox.open("n.c.e", request, sink)
    ids = tokens.pack((7,))
    inbox.frame(
        encode([[[0, stream], [99, stream, {"x": 1}], [1, stream, 0, ids, "stop", None, "newer field"]], "more"])
    )
    assert sink.deltas == [Accepted(stream), Tokens(stream, 0, ids, "stop")]
    assert skipped() == 1
    with pytest.raises(msgspec.ValidationError):
        inbox.frame(encode([[[99, stream], [1, stream, "offset", ids]]]))


def test_unknown_events_of_a_worker_are_skipped(skipped: Callable[[], int]) -> None:
    known = kv_events.Stored(None, (1,), (1,))
    assert kv_events.unpack(encode([["dreamt", 1], known])) == (known,)
    assert skipped() == 1


async def test_unknown_messages_between_process_and_daemon_are_skipped(skipped: Callable[[], int]) -> None:
    taken: list[Any] = []
    channel = Channel(taken.append, daemon=True)
    for message in (State("Worker", "Ready"), ["dream", {"of": "sheep"}], Heartbeat()):
        channel._decoded(encode(message))
    assert taken == [State("Worker", "Ready"), Heartbeat()]
    assert skipped() == 1
    with pytest.raises(msgspec.ValidationError):
        channel._decoded(encode(["state", 1]))
    channel._decoded(encode(Ask(1, "dream")))  # no handler answers here, and the asker is told


def test_the_first_request_of_this_test_is_one_of_ours() -> None:
    assert msgspec.msgpack.decode(encode(["open", 1, "n.c.e", ["describe", "r"]]), type=Open).stream == 1
