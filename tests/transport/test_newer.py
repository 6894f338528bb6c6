"""Messages of a newer release: skipped and counted, and a request gets an error; nothing that runs is cut."""

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from dynamod.message import kv_events, newer, tokens
from dynamod.message.discovery import Adapter
from dynamod.message.ingress import Accepted, Failed, Frame, Items, Logprobs, Text, Tokens
from dynamod.message.node import Ask, Ended, Heartbeat, Report, State
from dynamod.message.worker import (
    Call,
    Cancel,
    Chat,
    Confirm,
    Credit,
    Describe,
    Embed,
    Files,
    Generate,
    LoadAdapter,
    Open,
    Request,
    Subscribe,
    UnloadAdapter,
)
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
    assert skipped() == 3, "the part, a field of the tokens, and one of the frame"
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


def one_more(message: Any) -> bytes:
    """As a newer release encodes it, which has a field more at its end."""
    return encode([*msgspec.msgpack.decode(encode(message)), "a newer field"])


REQUESTS = [
    Generate("r", "m", tokens.pack(range(300))),
    Embed("r", "m", (tokens.pack((1,)),)),
    Chat("r", "m", "chat", b"{}"),
    Call("r", {"a": [1, {"b": None}]}),
    Subscribe("r"),
    Describe("r"),
    Files("r"),
    LoadAdapter("r", Adapter("a")),
    UnloadAdapter("r", "a"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_fields_at_the_end_of_a_request_are_counted(request_: Any, skipped: Callable[[], int]) -> None:
    begun: list[Any] = []

    async def main() -> None:
        outbox = Outbox(lambda _payload: None)
        for payload in (
            encode(["open", 2, "n.c.e", msgspec.Raw(one_more(request_))]),
            one_more(Open(3, "n.c.e", request_)),
            encode(Open(2**40, "n.c.e", request_)),
        ):
            outbox.take(memoryview(payload), lambda _endpoint, request, _reply: begun.append(request))

    asyncio.run(main())
    assert begun == [request_] * 3
    assert skipped() == 2


async def test_fields_of_a_request_whose_prompt_is_computed_are_counted(skipped: Callable[[], int]) -> None:
    message = ["open", 1, "n.c.e", ["prefill", msgspec.Raw(one_more(REQUESTS[0])), False, "a newer field"]]
    Outbox(lambda _payload: None).take(encode(message), lambda *_stream: None)
    assert skipped() == 2


@pytest.mark.parametrize("message", [Cancel(1), Confirm(1), Credit(1)])
async def test_fields_of_other_messages_to_a_worker_are_counted(message: Any, skipped: Callable[[], int]) -> None:
    outbox = Outbox(lambda _payload: None)
    outbox.take(encode(message), lambda *_stream: None)
    assert skipped() == 0
    outbox.take(one_more(message), lambda *_stream: None)
    assert skipped() == 1


@pytest.mark.parametrize(
    "last",
    [
        Accepted(1),
        Tokens(1, 0, b"", "stop"),
        Text(1, 0, "a", 1, "stop"),
        Items(1, 0, (1,), "stop"),
        Failed(1, "X", "y"),
    ],
)
def test_fields_of_what_begins_and_ends_an_answer_are_counted(last: Any, skipped: Callable[[], int]) -> None:
    inbox, sink = Inbox(lambda _payload: None), Seen()
    inbox.open("n.c.e", Describe("r"), sink)
    logprobs = Logprobs(1, 0, (0.5,))
    inbox.frame(encode([[msgspec.Raw(one_more(logprobs)), msgspec.Raw(one_more(last))]]))
    assert sink.deltas == [logprobs, last]
    assert skipped() == 2
    inbox.frame(encode(Frame((last,))))
    assert skipped() == 2


@given(
    data=st.data(),
    more=st.lists(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.lists(st.binary()), max_size=3),
)
def test_fields_of_events_are_counted_once_per_event(data: st.DataObject, more: list[Any]) -> None:
    before = newer.skipped()
    kinds = get_args(kv_events.WorkerEvent)
    events = data.draw(st.lists(st.one_of(*map(st.from_type, kinds)), max_size=4).map(tuple))
    try:
        packed = kv_events.pack(events)
    except OverflowError:  # an integer of more than 64 bits
        reject()
    added = [[*part, *more] for part in msgspec.msgpack.decode(packed)]
    known, seen = (kv_events.pack(tuple(kv_events.unpack(one))) for one in (packed, encode(added)))
    assert known == seen, "as bytes, since a NaN does not equal itself"
    assert newer.skipped() - before == (len(events) if more else 0)


async def test_fields_of_messages_between_process_and_daemon_are_counted_and_said_once_per_kind(
    skipped: Callable[[], int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer, "_said", set())
    taken: list[Any] = []
    for daemon, messages in ((True, (State("W", "Ready"), Heartbeat())), (False, (Report("g", ()), Ended("a")))):
        channel = Channel(taken.append, daemon=daemon)
        for message in messages:
            channel._decoded(encode(message))
            channel._decoded(one_more(message))
            channel._decoded(one_more(message))
    assert skipped() == 8
    said = [line for line in caplog.messages if "the last fields of" in line]
    assert len(said) == 4
    assert said[0] == (
        "skipped the last fields of a message between process and daemon of kind 'state': "
        "this release does not know them; the sender is newer"
    )


def test_the_first_request_of_this_test_is_one_of_ours() -> None:
    assert msgspec.msgpack.decode(encode(["open", 1, "n.c.e", ["describe", "r"]]), type=Open).stream == 1
