"""Frames of a worker and credits of its reader: as many leave as are confirmed, not one fewer."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.actor.testing import run
from dynamod.message import tokens
from dynamod.message.ingress import Delta, Frame, Items
from dynamod.message.worker import Call, Credit, Open, Request, ToWorker
from dynamod.transport.base import Reply, Sink
from dynamod.transport.inbox import Inbox
from dynamod.transport.outbox import LARGE, WINDOW, Outbox

_message = msgspec.msgpack.Decoder(ToWorker)
_frame = msgspec.msgpack.Decoder(Frame)


class Quiet(Sink):
    """Reads and forgets."""

    def delta(self, delta: Delta) -> None:
        pass


def one_token_each(outbox: Outbox, frames: int) -> None:
    """So many steps of one stream; each is a frame where credit is left."""
    reply = outbox.streams.get(1) or outbox.reply(1)
    for _ in range(frames):
        reply.tokens(tokens.pack((7,)), 1)
        outbox.flush()


@given(st.lists(st.integers(1, WINDOW), max_size=20))
def test_each_credit_lets_one_frame_leave(given_back: list[int]) -> None:
    async def main() -> None:
        sent: list[bytes] = []
        outbox = Outbox(sent.append)
        one_token_each(outbox, WINDOW + 1)
        assert len(sent) == WINDOW
        assert outbox.statistics().waiting == 1
        expected = WINDOW
        for credit in given_back:
            outbox.credit(credit)  # what waits leaves at once, as one frame
            one_token_each(outbox, WINDOW + 1)
            expected += credit
            assert len(sent) == expected
            assert outbox.statistics().credits == 0

    run(main())


def test_credits_are_bounded_by_the_window() -> None:
    async def main() -> None:
        outbox = Outbox(lambda _payload: None)
        one_token_each(outbox, 3)
        outbox.credit(1000)
        assert outbox.statistics().credits == WINDOW

    run(main())


@pytest.mark.parametrize("rounds", [1, 7])
def test_a_reader_that_keeps_up_confirms_every_frame(rounds: int) -> None:
    """After whole rounds of confirmations the worker may send as much as at the beginning."""

    async def main() -> None:
        sent: list[bytes] = []
        outbox = Outbox(sent.append)
        confirmed: list[bytes] = []
        inbox = Inbox(confirmed.append)
        inbox.open("n.c.e", Call("r", {}), Quiet())
        confirmed.clear()
        for _ in range(rounds * WINDOW):
            one_token_each(outbox, 1)
            inbox.frame(sent[-1])
            while confirmed:
                message = _message.decode(confirmed.pop())
                assert isinstance(message, Credit)
                outbox.credit(message.frames)
        assert len(sent) == rounds * WINDOW
        assert outbox.statistics().credits == WINDOW
        assert all(len(_frame.decode(frame).deltas) == 1 for frame in sent)

    run(main())


def test_large_answers_are_divided_into_frames() -> None:
    """Each is whole, in its order, and credits hold."""

    async def main() -> None:
        sent: list[bytes] = []
        outbox = Outbox(sent.append)
        vector = bytes(1 << 20)
        for stream in range(40):
            outbox.reply(stream).items((vector, vector), "stop")
        outbox.flush()
        for _ in range(WINDOW):
            await asyncio.sleep(0)
        assert len(sent) > 1
        assert max(map(len, sent)) <= LARGE
        found = [delta for data in sent for delta in _frame.decode(data).deltas]
        assert [delta.stream for delta in found] == list(range(40))
        assert all(delta.items == (vector, vector) for delta in found)
        assert outbox.statistics().credits == WINDOW - len(sent)
        assert outbox.statistics().waiting == 0
        sent.clear()
        one_token_each(outbox, WINDOW)  # no credit is left
        for stream in range(100, 120):
            outbox.reply(stream).items((vector,), "stop")
        outbox.flush()
        before = len(sent)
        outbox.credit(2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(sent) == before + 2, "the rest waits"
        outbox.credit(WINDOW)
        for _ in range(20):
            await asyncio.sleep(0)
        found = [delta for data in sent for delta in _frame.decode(data).deltas if isinstance(delta, Items)]
        assert [delta.stream for delta in found] == list(range(100, 120))

    run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_a_request_that_comes_twice_is_begun_once(ended: bool) -> None:
    """Both answers would go to one stream; where they wait for credit, they would be joined."""

    async def main() -> None:
        sent: list[bytes] = []
        begun: list[Reply] = []

        def receive(_endpoint: str, _request: Request, reply: Reply) -> None:
            begun.append(reply)
            reply.items((f"answer {len(begun)}",), "stop" if ended else None)

        outbox = Outbox(sent.append)
        first, second = (msgspec.msgpack.encode(Open(stream, "e", Call("work"))) for stream in (1, 2))
        for payload in (first, first, second, first, second):
            outbox.take(payload, receive)
            outbox.flush()
        found = [delta for data in sent for delta in _frame.decode(data).deltas if isinstance(delta, Items)]
        assert [(delta.stream, delta.items) for delta in found] == [(1, ("answer 1",)), (2, ("answer 2",))]
        assert [*outbox.streams] == ([] if ended else [1, 2])

    run(main())
