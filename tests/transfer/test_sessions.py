"""Sessions as leases, in virtual time, with readers that are objects."""

import asyncio
from typing import Any

import pytest

from dynamod.actor.testing import virtual
from dynamod.message.errors import Overloaded
from dynamod.transfer.base import Kind, TransferError
from dynamod.transfer.sessions import Sessions

LAYOUT = "layout"


class Reader:
    served = False

    def __init__(self) -> None:
        self.calls = 0
        self.ended: list[tuple[Kind, str]] = []

    def more(self) -> None:
        self.calls += 1

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
async def test_a_full_source_takes_no_session_and_no_block_more() -> None:
    sessions, ends = sessions_of(most_bytes=1000), list[str]()
    first = sessions.open(ends.append)
    second = sessions.open(ends.append)
    first.put(1, bytes(900))
    second.put(1, bytes(101))
    assert ends == ["failed"]
    assert sessions.statistics().held_bytes == 900
    first.put(2, bytes(100))
    with pytest.raises(Overloaded):
        sessions.open()
    first.release()
    assert ends == ["failed", "released"]
    sessions.open().put(1, bytes(1000))
    assert sessions.statistics().held_bytes == 1000
    sessions.close()
    assert sessions.statistics().held_bytes == 0


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
    assert len(session.blocks) == 1
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
