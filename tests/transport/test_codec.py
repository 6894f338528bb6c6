"""Framing and merging against naive models; every word survives the wire."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message import tokens
from dynamod.message.ingress import Accepted, Delta, Failed, Frame, Items, Step, Text, Tokens
from dynamod.message.worker import Call, Cancel, Chat, Confirm, Credit, Generate, Open, Sampling, Stops, ToWorker
from dynamod.transport import framing
from dynamod.transport.base import Reply, Sink
from dynamod.transport.framing import LIMIT, MAGIC, FrameError, Unframer, pack
from dynamod.transport.inbox import Inbox, InboxStatistics
from dynamod.transport.outbox import columns, merge

ids = st.lists(st.integers(0, 2**31 - 1), max_size=8)


@given(ids)
def test_token_ids_survive_packing(values: list[int]) -> None:
    packed = tokens.pack(values)
    assert len(packed) == 4 * len(values)
    assert tokens.count(packed) == len(values)
    assert list(tokens.unpack(packed)) == values


def test_token_ids_outside_int32_are_refused() -> None:
    with pytest.raises(OverflowError):
        tokens.pack([2**31])
    with pytest.raises(ValueError):
        tokens.unpack(b"abc")


@given(
    st.lists(st.binary(max_size=50), max_size=10),
    st.lists(st.integers(1, 40), max_size=40),
    st.sampled_from([0, 20, 1000]),
)
def test_any_cut_of_the_byte_stream_gives_the_same_payloads(payloads: list[bytes], cuts: list[int], large: int) -> None:
    """Payloads above `large` bytes are put together in another way."""
    data = MAGIC + b"".join(pack(payload) for payload in payloads)
    unframer, got, position = Unframer(), [], 0
    with mock.patch.object(framing, "LARGE", large):
        for cut in [*cuts, len(data)]:
            got += list(unframer.feed(data[position : position + cut]))
            position += cut
        got += list(unframer.feed(data[position:]))
    assert got == payloads


def test_a_large_frame_in_small_pieces_is_not_copied_again_and_again() -> None:
    payload = bytes(range(256)) * (LIMIT // 256)
    data = memoryview(MAGIC + pack(payload) + pack(b"next"))
    unframer, got, times = Unframer(), [], [time.thread_time()]
    for position in range(0, len(data), 16_384):
        got += list(unframer.feed(bytes(data[position : position + 16_384])))
        times.append(time.thread_time())
    assert got == [payload, b"next"]
    assert times[-1] - times[0] < 5  # 0.2 s; half a minute when each piece copies all before it
    assert times[-1] - times[-2] < 0.01, "the last piece does not copy all others: nobody waits for that"


@given(st.binary(min_size=1, max_size=64))
def test_what_does_not_begin_with_our_greeting_is_refused(data: bytes) -> None:
    unframer = Unframer()
    if MAGIC.startswith(data[: len(MAGIC)]) and len(data) < len(MAGIC):
        assert list(unframer.feed(data)) == []
    elif not data.startswith(MAGIC):
        with pytest.raises(FrameError):
            list(unframer.feed(data))


def test_an_impossible_length_is_refused() -> None:
    with pytest.raises(FrameError, match="above the limit"):
        list(Unframer().feed(MAGIC + (LIMIT + 1).to_bytes(4, "little")))


requests = st.one_of(
    st.builds(
        Generate,
        request_id=st.text(),
        model=st.text(),
        token_ids=ids.map(tokens.pack),
        prior_output=ids.map(tokens.pack),
        stops=st.builds(Stops, max_tokens=st.none() | st.integers(0, 100), stop=st.none() | st.tuples(st.text())),
        sampling=st.builds(Sampling, temperature=st.none() | st.floats(0, 2), logit_bias=st.none() | st.just({3: 1.0})),
    ),
    st.builds(Chat, request_id=st.text(), model=st.text(), kind=st.just("chat"), body=st.binary()),
    st.builds(Call, request_id=st.text(), payload=st.none() | st.text() | st.lists(st.integers(0, 9))),
)


@given(
    st.one_of(
        st.builds(Open, st.integers(0, 9), st.text(), requests),
        st.builds(Cancel, st.integers(0, 9)),
        st.builds(Confirm, st.integers(0, 9)),
        st.builds(Credit, st.integers(0, 9)),
    )
)
def test_words_to_a_worker_survive_the_wire(message: Any) -> None:
    decoder = msgspec.msgpack.Decoder(ToWorker)
    assert decoder.decode(msgspec.msgpack.encode(message)) == message


def test_an_error_of_an_older_worker_is_understood() -> None:
    old = [[[5, 3, "BadRequest", "no", "prompt", False]]]
    decoder = msgspec.msgpack.Decoder(Frame)
    assert decoder.decode(msgspec.msgpack.encode(old)).deltas == (Failed(3, "BadRequest", "no", "prompt"),)


def test_a_reply_tells_all_of_an_error() -> None:
    class Destination:
        def __init__(self) -> None:
            self.streams: dict[int, Reply] = {}
            self.origin = self
            self.deltas: list[Delta] = []
            self.add = self.deltas.append

    destination = Destination()
    reply = Reply(destination, 3)
    reply.failed("BadRequest", "too long", param="prompt", code="context_length_exceeded")
    reply.failed("EngineFailed", "only the first error counts")
    (failed,) = destination.deltas
    assert failed == Failed(3, "BadRequest", "too long", "prompt", False, "context_length_exceeded")
    frame = Frame((failed,))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=Frame) == frame


finish = st.none() | st.just("stop")


@st.composite
def delta_lists(draw: st.DrawFn) -> list[Delta]:
    """What outboxes hold: deltas of some streams with right offsets, nothing after an end."""
    result: list[Delta] = []
    offsets: dict[int, int] = defaultdict(int)
    kinds: dict[int, str] = {}
    ended: set[int] = set()
    for stream in draw(st.lists(st.integers(0, 3), max_size=30)):
        if stream in ended:
            continue
        kind = kinds.setdefault(stream, draw(st.sampled_from(["tokens", "text", "items"])))
        end = draw(finish)
        if kind == "tokens":
            new = draw(ids)
            result.append(Tokens(stream, offsets[stream], tokens.pack(new), end))
            offsets[stream] += len(new)
        elif kind == "text":
            word = draw(st.text(max_size=4))
            result.append(Text(stream, offsets[stream], word, 1, end))
            offsets[stream] += len(word)
        else:
            things = tuple(draw(ids))
            result.append(Items(stream, offsets[stream], things, end))
            offsets[stream] += len(things)
        if draw(st.booleans()) and draw(st.booleans()):
            result.append(Accepted(stream))
        if end is not None:
            ended.add(stream)
        elif draw(st.integers(0, 9)) == 0:
            result.append(Failed(stream, "EngineFailed", "x"))
            ended.add(stream)
    return result


def content(deltas: list[Delta]) -> dict[int, list[Any]]:
    """What each reader sees: the order of kinds without the cuts between pieces."""
    seen: dict[int, list[Any]] = defaultdict(list)
    for delta in deltas:
        match delta:
            case Tokens(stream, offset, packed, end):
                seen[stream] += [("token", offset + i, t) for i, t in enumerate(tokens.unpack(packed))]
                seen[stream] += [("end", end)] if end else []
            case Text(stream, offset, text, _, end):
                seen[stream] += [("char", offset + i, c) for i, c in enumerate(text)]
                seen[stream] += [("end", end)] if end else []
            case Items(stream, offset, items, end):
                seen[stream] += [("item", offset + i, item) for i, item in enumerate(items)]
                seen[stream] += [("end", end)] if end else []
            case _:
                seen[delta.stream].append(delta)
    return {stream: things for stream, things in seen.items() if things}


def spelled_out(deltas: Sequence[Delta | Step]) -> list[Delta]:
    """The rows of steps as deltas of their own."""
    result: list[Delta] = []
    for delta in deltas:
        if isinstance(delta, Step):
            rows = zip(*map(tokens.unpack, (delta.streams, delta.offsets, delta.ids)), strict=True)
            result += [Tokens(stream, offset, tokens.pack([index])) for stream, offset, index in rows]
        else:
            result.append(delta)
    return result


@given(delta_lists())
def test_columns_are_another_spelling_of_the_same_deltas(deltas: list[Delta]) -> None:
    written = columns(deltas)
    assert spelled_out(written) == deltas
    decoder = msgspec.msgpack.Decoder(Frame)
    assert decoder.decode(msgspec.msgpack.encode(Frame(tuple(written)))).deltas == tuple(written)


def test_one_token_each_of_many_streams_is_one_step() -> None:
    step = [Tokens(stream, 7, tokens.pack([stream])) for stream in range(100)]
    (written,) = columns([*step])
    assert isinstance(written, Step)
    assert len(msgspec.msgpack.encode(written)) < 100 * 12 + 20
    big = Tokens(2**31, 0, tokens.pack([1]))  # a stream number that does not fit stays as it is
    assert columns([big, big]) == [big, big]


class Rows(Sink):
    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.tokens: list[tuple[int, int]] = []

    def delta(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def token(self, offset: int, index: int) -> None:
        self.tokens.append((offset, index))

    def lost(self, why: str) -> None:
        raise AssertionError(why)


def test_rows_of_a_step_go_to_their_sinks_and_late_ones_are_counted() -> None:
    inbox = Inbox(lambda _payload: None)
    sinks = [Rows(), Rows()]
    numbers = [inbox.open("generate", Call("r"), sink) for sink in sinks]
    step = Step(tokens.pack([*numbers, 99, numbers[0]]), tokens.pack([0, 5, 0, 1]), tokens.pack([7, 8, 9, 10]))
    inbox.frame(msgspec.msgpack.encode(Frame((step,))))
    assert [sink.tokens for sink in sinks] == [[(0, 7), (1, 10)], [(5, 8)]]
    assert inbox.statistics() == InboxStatistics(frames=1, deltas=4, late=1, streams=2)


@pytest.mark.parametrize(
    "step", [Step(tokens.pack([1, 2]), tokens.pack([0]), tokens.pack([5])), Step(b"abc", b"abc", b"abc")]
)
def test_a_step_with_broken_columns_is_refused(step: Step) -> None:
    inbox = Inbox(lambda _payload: None)
    with pytest.raises(msgspec.ValidationError):
        inbox.frame(msgspec.msgpack.encode(Frame((step,))))


@given(delta_lists())
def test_merging_changes_nothing_a_reader_can_see(deltas: list[Delta]) -> None:
    merged = merge(deltas)
    assert content(merged) == content(deltas)
    assert len(merged) <= len(deltas)
    assert merge(merged) == merged
    assert sum(d.tokens for d in merged if isinstance(d, Text)) == sum(d.tokens for d in deltas if isinstance(d, Text))
    decoder = msgspec.msgpack.Decoder(Frame)
    assert decoder.decode(msgspec.msgpack.encode(Frame(tuple(merged)))).deltas == tuple(merged)
