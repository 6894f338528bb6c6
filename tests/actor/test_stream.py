"""Streams: offsets, merging, ends; against a naive model."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.actor import Stream, StreamGap, unseen
from dynamod.actor.testing import virtual


@virtual
async def test_a_slow_reader_gets_everything_in_one_piece() -> None:
    stream: Stream[int] = Stream()
    for i in range(5):
        stream.push(i, [i])
    stream.end()
    assert await stream.read() == [0, 1, 2, 3, 4]
    assert await stream.read() == []


@virtual
async def test_duplicates_are_dropped_and_gaps_raise() -> None:
    stream: Stream[int] = Stream()
    stream.push(0, [0, 1, 2])
    stream.push(1, [1, 2, 3])
    stream.push(0, [0])
    assert await stream.read() == [0, 1, 2, 3]
    with pytest.raises(StreamGap, match="items 4 to 4 are missing"):
        stream.push(5, [5])


@virtual
async def test_an_error_comes_after_the_items_before_it() -> None:
    stream: Stream[int] = Stream()
    stream.push(0, [7])
    stream.end(OSError("gone"))
    stream.end()
    assert await stream.read() == [7]
    with pytest.raises(OSError, match="gone"):
        await stream.read()
    stream.push(1, [8])
    with pytest.raises(OSError, match="gone"):
        await stream.read()


@virtual
async def test_read_waits_for_the_writer() -> None:
    stream: Stream[str] = Stream()
    async with asyncio.TaskGroup() as group:
        read = group.create_task(stream.read())
        await asyncio.sleep(5)
        stream.push(0, ["a"])
    assert read.result() == ["a"]


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_unseen_agrees_with_sets(expected: int, offset: int, count: int) -> None:
    have, piece = set(range(expected)), range(offset, offset + count)
    if offset > expected:
        with pytest.raises(StreamGap):
            unseen(expected, offset, count)
    else:
        assert unseen(expected, offset, count) == len([i for i in piece if i in have])


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=30))
def test_any_order_of_pieces_of_one_sequence_gives_a_prefix_of_it(pieces: list[tuple[int, int]]) -> None:
    @virtual
    async def check() -> None:
        stream: Stream[int] = Stream()
        for offset, count in pieces:
            try:
                stream.push(offset, range(offset, offset + count))
            except StreamGap:
                continue
        stream.end()
        got: list[int] = []
        while items := await stream.read():
            got += items
        assert got == list(range(len(got)))

    check()
