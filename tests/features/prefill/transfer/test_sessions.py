"""Sessions as leases, in virtual time, with readers that are objects."""

import asyncio
from typing import Any

import pytest

from dynamod.actor.testing import virtual
from dynamod.features.prefill.transfer.base import Kind, TransferError
from dynamod.features.prefill.transfer.sessions import Sessions

LAYOUT = "layout"


class Reader:
    served = False

    def __init__(self) -> None:
        self.calls = self.asked = 0
        self.ended: list[tuple[Kind, str]] = []

    def more(self) -> None:
        self.calls += 1

    def ask(self) -> None:
        self.asked += 1

    def over(self, kind: Kind, why: str) -> None:
        self.ended.append((kind, why))


def sessions_of(**options: Any) -> Sessions:
    loop = asyncio.get_running_loop()
    return Sessions(loop.time, lambda work, name: loop.create_task(work, name=name), LAYOUT, **options)


def test_ids_cannot_be_guessed() -> None:
    async def main() -> None:
        sessions = sessions_of()
        ids = [sessions.open().id for _ in range(50)]
        assert len(set(ids)) == 50
        assert all(len(one) >= 22 for one in ids)
        sessions.close()

    asyncio.run(main())


@virtual
async def test_a_session_that_nobody_reads_expires_once() -> None:
    sessions, ends = sessions_of(lease=30), list[str]()
    session = sessions.open(ends.append)
    session.put(1, b"abc")
    await asyncio.sleep(29)
    assert ends == []
    await asyncio.sleep(2)
    assert ends == ["expired"]
    statistics = sessions.statistics()
    assert (statistics.open, statistics.held_bytes, statistics.expired) == (0, 0, 1)
    session.put(2, b"abc")
    session.finish()
    session.fail("late")
    session.release()
    assert ends == ["expired"]
    assert sessions.statistics() == statistics


@virtual
async def test_puts_and_readers_prolong_the_lease() -> None:
    sessions, ends = sessions_of(lease=30), list[str]()
    session = sessions.open(ends.append)
    await asyncio.sleep(29)
    session.put(1, b"abc")
    await asyncio.sleep(29)
    session.finish()
    await asyncio.sleep(29)
    reader = Reader()
    sessions.attach(session.id, LAYOUT, reader)
    await asyncio.sleep(29)
    session.touch()
    await asyncio.sleep(29)
    assert ends == []
    await asyncio.sleep(2)
    assert ends == ["expired"]
    assert reader.ended == [("gone", "the session has expired")]


@virtual
async def test_each_session_has_its_own_lease() -> None:
    sessions, ends = sessions_of(lease=30), list[str]()
    sessions.open(lambda why: ends.append("first"))
    await asyncio.sleep(10)
    second = sessions.open(lambda why: ends.append("second"))
    await asyncio.sleep(21)
    assert ends == ["first"]
    second.touch()
    await asyncio.sleep(29)
    assert ends == ["first"]
    await asyncio.sleep(2)
    assert ends == ["first", "second"]
    sessions.open(lambda why: ends.append("third"))  # the watch begins again
    await asyncio.sleep(31)
    assert ends == ["first", "second", "third"]


@virtual
async def test_a_full_source_has_blocks_wait_for_room_in_the_order_of_their_coming() -> None:
    sessions, ends, told = sessions_of(most_bytes=1000), list[str](), list[str]()
    first, second, third = (sessions.open(ends.append) for _ in range(3))
    assert first.room(900, lambda: told.append("first"))
    first.put(1, bytes(900))
    assert not second.room(101, lambda: told.append("second"))
    assert not third.room(1, lambda: told.append("third")), "others wait already"
    assert not first.room(100, lambda: told.append("first"))
    await asyncio.sleep(20)
    assert (ends, told, sessions.statistics().held_bytes, sessions.statistics().waiting) == ([], [], 900, 3)
    first.put(2, bytes(50))  # of another size than was asked for: it counts, and is taken
    assert sessions.statistics().held_bytes == 950
    first.release()
    await asyncio.sleep(0.1)
    assert (ends, told) == (["released"], ["second", "third"])
    assert sessions.statistics().held_bytes == 102, "theirs already"
    second.put(1, bytes(101))
    assert (second.held, sessions.statistics().held_bytes) == (101, 102)
    sessions.close()
    assert (sessions.statistics().held_bytes, sessions.statistics().waiting) == (0, 0)


@virtual
async def test_blocks_that_the_reader_has_are_dropped_and_make_room() -> None:
    sessions, told, reader = sessions_of(most_bytes=1000), list[str](), Reader()
    session, other = sessions.open(), sessions.open()
    sessions.attach(session.id, LAYOUT, reader)
    for name in range(4):
        assert session.room(250, lambda: told.append("never"))
        session.put(name, bytes(250))
    assert not other.room(500, lambda: told.append("other"))
    assert reader.asked == 1, "what it has is not known before it says so"
    session.acknowledge(1)
    await asyncio.sleep(0.1)
    assert (told, session.first, session.count, session.held) == ([], 1, 4, 750)
    session.acknowledge(1)
    session.acknowledge(0)  # an older message
    session.acknowledge(2)
    await asyncio.sleep(0.1)
    assert (told, sessions.statistics().held_bytes) == (["other"], 1000)
    assert [session.block(index).name for index in (2, 3)] == [2, 3]
    session.detach()
    with pytest.raises(TransferError, match="are not here any more") as gone:
        sessions.attach(session.id, LAYOUT, Reader(), 1)
    assert gone.value.kind == "gone"
    sessions.attach(session.id, LAYOUT, Reader(), 2)
    sessions.close()


@virtual
async def test_one_that_nobody_reads_makes_room_when_its_lease_ends() -> None:
    sessions, ends, told = sessions_of(most_bytes=1000, lease=30), list[str](), list[float]()
    now = asyncio.get_running_loop().time
    unread, waits = sessions.open(ends.append), sessions.open()
    assert unread.room(1000, lambda: None)
    unread.put(1, bytes(1000))
    reader = Reader()
    sessions.attach(waits.id, LAYOUT, reader)
    began = now()
    assert not waits.room(10, lambda: told.append(now() - began))
    for _ in range(6):
        await asyncio.sleep(6)
        waits.touch()  # its reader lives
    assert (ends, told) == (["expired"], [pytest.approx(30, abs=1)])
    sessions.close()


@virtual
async def test_sessions_with_a_reader_have_room_before_others() -> None:
    sessions, told = sessions_of(most_bytes=1000), list[str]()
    full, unread, late = (sessions.open() for _ in range(3))
    sessions.attach(full.id, LAYOUT, Reader())
    assert full.room(1000, lambda: None)
    full.put(1, bytes(1000))
    assert not unread.room(500, lambda: told.append("unread"))
    assert not late.room(500, lambda: told.append("late"))
    sessions.attach(late.id, LAYOUT, Reader())
    assert not full.room(500, lambda: told.append("full"))
    full.acknowledge(1)
    await asyncio.sleep(0.1)
    assert told == ["late", "full"]
    late.release()
    await asyncio.sleep(0.1)
    assert told == ["late", "full", "unread"]
    unread.release()
    assert not unread.room(1, lambda: None), "it has ended"
    sessions.close()


@virtual
async def test_blocks_that_the_reader_had_before_take_no_room() -> None:
    sessions = sessions_of(most_bytes=1000)
    session = sessions.open()
    assert session.room(600, lambda: None)
    session.put(0, bytes(600))
    sessions.attach(session.id, LAYOUT, Reader(), 3)
    for name in (1, 2, 3):
        assert session.room(600, lambda: None)
        session.put(name, bytes(600))
    assert (session.first, session.count, session.held) == (3, 4, 600)
    assert session.block(3).name == 3
    session.finish()
    sessions.close()


@virtual
async def test_a_block_above_the_limit_is_taken_alone() -> None:
    sessions, told = sessions_of(most_bytes=1000), list[str]()
    small, large = sessions.open(), sessions.open()
    assert small.room(1, lambda: None)
    assert not large.room(5000, lambda: told.append("large"))
    small.release()
    await asyncio.sleep(0.1)
    assert told == ["large"]
    large.put(1, bytes(5000))
    assert not large.room(1, lambda: told.append("again"))
    large.acknowledge(1)
    await asyncio.sleep(0.1)
    assert told == ["large", "again"]
    sessions.close()


@virtual
async def test_a_session_that_ends_waits_no_more() -> None:
    sessions, told = sessions_of(most_bytes=1000), list[str]()
    full, gone, last = (sessions.open() for _ in range(3))
    assert full.room(1000, lambda: None)
    assert not gone.room(10, lambda: told.append("gone"))
    assert not last.room(10, lambda: told.append("last"))
    gone.fail("of this test")
    assert not gone.room(10, lambda: told.append("gone"))
    full.release()
    await asyncio.sleep(0.1)
    assert (told, sessions.statistics().held_bytes) == (["last"], 10)
    sessions.close()


@pytest.mark.parametrize(("served", "ending"), [(True, "read"), (False, "released")])
@virtual
async def test_what_was_sent_whole_counts_as_read(served: bool, ending: str) -> None:
    """The answer's first token may be known before the reader's word is here."""
    sessions, ends, reader = sessions_of(), list[str](), Reader()
    session = sessions.open(ends.append)
    session.put(1, b"abc")
    sessions.attach(session.id, LAYOUT, reader)
    reader.served = served
    session.release()
    assert ends == [ending]
    assert bool(reader.ended) is not served


@virtual
async def test_a_reader_may_break_off_once() -> None:
    sessions, ends = sessions_of(), list[str]()
    session = sessions.open(ends.append)
    session.put(1, b"abc")
    sessions.attach(session.id, LAYOUT, Reader())
    with pytest.raises(TransferError, match="another reader") as refused:
        sessions.attach(session.id, LAYOUT, Reader())
    assert refused.value.kind == "gone"
    session.detach()
    assert session.block(0).name == 1
    sessions.attach(session.id, LAYOUT, Reader())
    session.detach()
    assert ends == ["failed"]
    with pytest.raises(TransferError, match="no such session"):
        sessions.attach(session.id, LAYOUT, Reader())
    sessions.close()


@virtual
async def test_the_layout_is_compared_for_those_who_know_the_session() -> None:
    sessions = sessions_of()
    session = sessions.open()
    with pytest.raises(TransferError) as unknown:
        sessions.attach("guessed", "other", Reader())
    with pytest.raises(TransferError) as other:
        sessions.attach(session.id, "other", Reader())
    assert (unknown.value.kind, other.value.kind) == ("gone", "layout")
    sessions.attach(session.id, LAYOUT, Reader())  # a refusal counts as no reader
    sessions.close()


@virtual
async def test_every_ending_is_counted_and_told() -> None:
    sessions, ends = sessions_of(), list[str]()
    reader = Reader()
    for _ in range(4):
        session = sessions.open(ends.append)
        sessions.attach(session.id, LAYOUT, reader)
        session.put(1, b"abc")
        match len(ends):
            case 0:
                session.finish()
                session.end("read")
            case 1:
                session.fail("the engine has died")
            case 2:
                session.release()
            case _:
                sessions.close()
    assert ends == ["read", "failed", "released", "released"]
    assert [kind for kind, _ in reader.ended] == ["failed", "gone", "gone"]
    assert reader.ended[0] == ("failed", "the engine has died")
    counted = sessions.statistics()
    assert (counted.opened, counted.read, counted.failed, counted.released) == (4, 1, 1, 2)
