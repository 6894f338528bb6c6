"""Frames and the bytes of pieces, cut anywhere."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.prefill.transfer.frames import (
    BLOCK_LIMIT,
    FRAME_LIMIT,
    WHY_LIMIT,
    WINDOW,
    Accept,
    Credit,
    Done,
    End,
    Failed,
    Frame,
    FrameError,
    Head,
    Hello,
    Idle,
    Piece,
    checksum,
    pack,
    unpack,
)
from dynamod.features.prefill.transfer.link import DIRECT, Link

BUFFER = 2 * DIRECT

U64 = st.integers(0, 2**64 - 1)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, U64, st.text(max_size=256), st.text(max_size=256), U64),
    st.builds(Head, U64, st.integers(0, BLOCK_LIMIT), U64),
    st.builds(Credit, st.integers(1, WINDOW)),
    st.builds(End, U64),
    st.builds(Failed, st.text(max_size=32), st.text(max_size=WHY_LIMIT)),
    st.sampled_from([Accept(), Idle(), Done()]),
)


class Recorder(Link):
    """Keeps frames, and the bytes behind each Piece."""

    def __init__(self, buffer: int = BUFFER) -> None:
        super().__init__(buffer)
        self.got: list[Any] = []
        self.place = bytearray()
        self.fault = ""

    def received(self, frame: Frame) -> None:
        if isinstance(frame, Piece):
            self.place = bytearray(frame.size)
            self.expect(memoryview(self.place))
        else:
            self.got.append(frame)

    def filled(self, size: int) -> None:
        assert size == len(self.place)
        self.got.append(bytes(self.place))

    def damaged(self, why: str) -> None:
        self.fault = why
        self.close()

    def feed(self, data: bytes, sizes: list[int]) -> None:
        """As an event loop does, with reads of these sizes at most, in turn."""
        turn = 0
        while data:
            with self.get_buffer(-1) as buffer:
                size = min(len(buffer), len(data), sizes[turn % len(sizes)])
                assert size
                buffer[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]
            turn += 1


@given(FRAMES)
def test_a_frame_is_what_it_was(frame: Frame) -> None:
    data = pack(frame)
    assert unpack(memoryview(data + b"more")) == (frame, len(data))
    assert all(unpack(memoryview(data)[:end]) is None for end in range(len(data)))


@given(
    st.lists(st.one_of(FRAMES, st.binary(min_size=1, max_size=3000), st.just(b"x" * BUFFER * 2)), max_size=20),
    st.lists(st.sampled_from([1000, 4096, 70_000, BUFFER]) | st.integers(1, 3000), min_size=1, max_size=5),
    st.sampled_from([BUFFER, 2 * FRAME_LIMIT]),
)
def test_frames_and_pieces_may_be_cut_anywhere(parts: list[Any], sizes: list[int], buffer: int) -> None:
    if min(sizes) < 50:  # a read for each byte of a large piece takes long
        parts = [part[:3000] if isinstance(part, bytes) else part for part in parts]
    wire = b"".join(pack(Piece(len(part))) + part if isinstance(part, bytes) else pack(part) for part in parts)
    recorder = Recorder(buffer)
    recorder.feed(wire, sizes)
    assert recorder.got == parts
    assert recorder.fault == ""


@given(st.binary(max_size=300))
def test_strangers_are_frames_or_faults(data: bytes) -> None:
    recorder = Recorder()
    recorder.feed(data, [len(data)])
    assert len(recorder.place) <= WINDOW


@pytest.mark.parametrize(
    "frame",
    [
        Head(1, BLOCK_LIMIT + 1, 0),
        Head(-1, 1, 0),
        Piece(WINDOW + 1),
        Piece(0),
        Credit(-5),
        End(-1),
        Hello(1, "s" * 257, "", 0),
    ],
)
def test_impossible_sizes_are_refused_before_anything_is_kept(frame: Frame) -> None:
    with pytest.raises(FrameError):
        unpack(memoryview(pack(frame)))


def test_a_long_frame_is_seen_by_its_length() -> None:
    with pytest.raises(FrameError, match="above the limit"):
        unpack(memoryview((FRAME_LIMIT + 1).to_bytes(4, "little")))
    with pytest.raises(FrameError, match="above the limit"):
        unpack(memoryview(b"GET / HTTP/1.1\r\n"))
    with pytest.raises(FrameError, match="above the limit"):
        pack(Failed("failed", "x" * FRAME_LIMIT))


@given(U64, U64, st.binary(max_size=300), st.integers(0, 299))
def test_the_checksum_covers_name_and_bytes(name: int, other: int, data: bytes, place: int) -> None:
    assert (checksum(name, data) == checksum(other, data)) is (name == other)
    if data:
        changed = bytearray(data)
        changed[place % len(data)] ^= 1
        assert checksum(name, bytes(changed)) != checksum(name, data)


async def test_nothing_is_looked_at_behind_a_fault() -> None:
    recorder = Recorder()
    recorder.feed(b"\xff" * 10 + pack(Idle()) * (BUFFER // 5), [BUFFER])
    assert recorder.fault
    assert recorder.got == []
    assert isinstance(recorder, asyncio.BufferedProtocol)
