"""Pieces and numbers against any payloads, any cut, and any accident on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.transport.framing import LIMIT, FrameError
from dynamod.transport.nats import wire as nats_wire
from dynamod.transport.nats.transport import instance_subject
from dynamod.transport.nats.wire import (
    ALIVE,
    DATA,
    ECHO,
    HEADER,
    VERSION,
    Budget,
    PeerEndedError,
    Receiver,
    Sender,
    WireError,
)

payload_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=8)
rooms = st.integers(1, 50)


def cut(payloads: list[bytes], room: int) -> list[bytes]:
    sender = Sender()
    return [message for payload in payloads for message in sender.cut(payload, room)]


def receive(messages: list[bytes], budget: Budget | None = None) -> list[bytes]:
    receiver = Receiver(budget or Budget(10_000))
    return [payload for payload in map(receiver.take, messages) if payload is not None]


@given(payload_lists, rooms)
def test_any_payloads_in_any_pieces_arrive_as_they_were(payloads: list[bytes], room: int) -> None:
    budget = Budget(1000)
    messages = cut(payloads, room)
    assert all(len(message) <= room + HEADER.size for message in messages)
    assert receive(messages, budget) == payloads
    assert budget.used == 0


@given(payload_lists, rooms, st.data())
def test_doubled_messages_change_nothing(payloads: list[bytes], room: int, data: st.DataObject) -> None:
    messages = cut(payloads, room)
    doubled: list[bytes] = []
    for place, message in enumerate(messages):
        doubled += [message, *data.draw(st.lists(st.sampled_from(messages[: place + 1]), max_size=2))]
    receiver = Receiver(Budget(1000))
    got = [payload for payload in map(receiver.take, doubled) if payload is not None]
    assert got == payloads
    assert receiver.doubled == len(doubled) - len(messages)


@given(payload_lists, rooms, st.data())
def test_a_lost_message_is_always_noticed(payloads: list[bytes], room: int, data: st.DataObject) -> None:
    sender = Sender()
    messages = [message for payload in payloads for message in sender.cut(payload, room)]
    lost = data.draw(st.sets(st.integers(0, len(messages) - 1), min_size=1))
    left = [message for place, message in enumerate(messages) if place not in lost]
    receiver = Receiver(Budget(1000))
    got: list[bytes] = []

    def take_all() -> None:
        for message in [*left, sender.alive()]:  # the sign of life shows even the loss of the last ones
            payload = receiver.take(message)
            if payload is not None:
                got.append(payload)

    with pytest.raises(WireError, match="lost frames"):
        take_all()
    assert got == payloads[: len(got)], "and nothing wrong was handed on before"


@given(payload_lists, rooms, st.data())
def test_messages_in_another_order_are_never_taken_for_the_right_ones(
    payloads: list[bytes], room: int, data: st.DataObject
) -> None:
    messages = cut(payloads, room)
    mixed = data.draw(st.permutations(messages))
    if mixed == messages:
        assert receive(mixed) == payloads
    else:
        with pytest.raises(WireError, match="lost frames"):
            receive(mixed)


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_strange_bytes_raise_nothing_but_wire_errors(messages: list[bytes], ours: bool) -> None:
    receiver, budget = Receiver(budget := Budget(100)), budget
    try:
        for message in messages:
            receiver.take(bytes([VERSION, DATA]) + message if ours else message)
    except WireError:
        pass
    receiver.drop()
    assert budget.used == 0


def test_pieces_that_do_not_fit_together_are_refused() -> None:
    def message(number: int, length: int, body: bytes) -> bytes:
        return HEADER.pack(VERSION, DATA, length, number) + body

    for messages in (
        [message(1, 4, b"ab"), message(2, 5, b"cd")],
        [message(1, 4, b"ab"), message(2, 4, b"cde")],
        [message(1, 4, b"ab"), message(2, 2, b"cd")],
        [message(1, 4, b"")],
        [message(1, 1, b"ab")],
        [message(1, LIMIT + 1, b"ab")],
    ):
        with pytest.raises(WireError, match="corrupt"):
            receive(messages)


def test_memory_of_half_received_payloads_is_bounded() -> None:
    budget = Budget(100)
    messages = cut([bytes(80)], 40)
    one, two = Receiver(budget), Receiver(budget)
    one.take(messages[0])
    two.take(messages[0])
    with pytest.raises(WireError, match="half-received"):
        one.take(messages[1])
    one.drop()
    assert two.take(messages[1]) == bytes(80)
    assert budget.used == 0


def test_a_payload_above_the_limit_is_refused_before_it_is_sent() -> None:
    sender = Sender()
    with pytest.raises(FrameError):
        sender.cut(bytes(LIMIT + 1), 1 << 20)
    assert sender.sequence == 0


def test_signs_of_life() -> None:
    sender, receiver = Sender(), Receiver(Budget(0))
    receiver.take(sender.alive())
    assert receiver.asked
    receiver.asked = False
    (message,) = sender.cut(b"x", 10)
    assert receiver.take(message) == b"x"
    receiver.take(sender.alive(ECHO))
    assert not receiver.asked
    with pytest.raises(PeerEndedError, match="enough"):
        receiver.take(nats_wire.end("enough"))
    with pytest.raises(WireError, match="version 9"):
        receiver.take(HEADER.pack(9, ALIVE, 0, 0))


@pytest.mark.parametrize(
    ("parts", "subject"),
    [
        (("dynamo", "backend", "generate", 0x694D98147D54BE25), "dynamo_backend.generate-694d98147d54be25"),
        (("a.b", "c d", "e>*", 1), "a_b_c_d.e__-1"),
        (("$SYS", "", "größe", 0), "_SYS_.gr__e-0"),
    ],
)
def test_subjects_are_named_as_by_the_original_and_safe(parts: tuple[str, str, str, int], subject: str) -> None:
    assert instance_subject(*parts) == subject
